"""A script is JSON with conversations or text with one prompt a line, and nothing else."""

import json

import pytest

from wisp.conversations import Conversation, Script, read_script

TALKS = {"max_tokens": 9, "temperature": 0.5, "conversations": [{"domain": "a", "turns": ["x", "y"]}, {"turns": ["z"]}]}


def write(tmp_path, name, content):
    (tmp_path / name).write_text(content if isinstance(content, str) else json.dumps(content))
    return tmp_path / name


def test_json_is_a_script(tmp_path):
    path = write(tmp_path, "p.json", TALKS)
    talks = (Conversation("a", ("x", "y")), Conversation("", ("z",)))
    assert read_script(path) == Script(talks, True, 9, 0.5, 1.0)
    assert read_script(path, domain="a", max_tokens=4) == Script(talks[:1], True, 4, 0.5, 1.0)


def test_a_line_is_a_plain_prompt(tmp_path):
    script = read_script(write(tmp_path, "p.txt", "one\n\ntwo \n"))
    assert [talk.turns for talk in script.conversations] == [("one",), ("two ",)]
    assert not script.chat


@pytest.mark.parametrize(
    ("name", "content", "told"),
    [
        ("p.txt", "\n", "holds no prompt"),
        ("p.json", "{", "holds no conversations"),
        ("p.json", "[1]", "holds no conversations"),
        ("p.json", {"conversations": [{"domain": "a"}]}, "'turns'"),
        ("p.json", {"conversations": []}, "holds no prompt"),
        ("p.json", {**TALKS, "max_tokens": "many"}, "holds no conversations"),
    ],
)
def test_what_is_no_script_is_refused(tmp_path, name, content, told):
    from wisp.errors import ConfigError

    with pytest.raises(ConfigError, match=told):
        read_script(write(tmp_path, name, content))
    with pytest.raises(ConfigError, match="cannot be read"):
        read_script(tmp_path / "none")
    with pytest.raises(ConfigError, match="of domain 'b'; it has a"):
        read_script(write(tmp_path, "q.json", TALKS), domain="b")
