"""Settings: precedence, origins, faults told all at once."""

import os
from pathlib import Path

import pytest

from lineshaft.runtime.settings import Node, Secret, SettingsError, load


def test_defaults_lie_in_the_state_folder(tmp_path: Path) -> None:
    """Nothing has to be set."""
    made = load(environ={}, overrides={"state_dir": str(tmp_path / "a b")})
    assert made.runs_dir == tmp_path / "a b" / "runs"
    assert made.store_url == f"sqlite://{tmp_path}/a%20b/journal"
    assert made.objects_url == f"file://{tmp_path}/a%20b/objects"
    assert made.nodes == (Node("local", "cpu", os.cpu_count() or 1),)
    assert (made.pool, made.http_port, made.token()) == ("default", 0, None)
    assert made.origins()["pool"] == "default"


def test_file_then_environment_then_what_is_given(tmp_path: Path) -> None:
    """The later wins, and each value's origin is kept."""
    file = tmp_path / "lineshaft.toml"
    file.write_text(
        'pool = "big"\nlog_level = "debug"\nmounts = ["data", "/abs"]\nreplica = "r-1"\n'
        "[quotas]\nml = 8\n[policy.scheduler]\nbackoff_s = 3\n"
        '[[nodes]]\nname = "n1"\ngpu_type = "a100-80g"\nslots = 8\n[nodes.labels]\nrack = "r1"\n'
    )
    environ = {"LINESHAFT_LOG_LEVEL": "error", "LINESHAFT_REPLICA": "r-2"}
    made = load(file, environ, {"replica": "r-3", "state_dir": None})
    assert (made.pool, made.log_level, made.replica) == ("big", "error", "r-3")
    assert made.mounts == (tmp_path / "data", Path("/abs"))
    assert made.quotas == {"ml": 8}
    assert made.policy("scheduler") == {"backoff_s": 3}
    assert made.policy("monitor") == {}
    assert made.nodes == (Node("n1", "a100-80g", 8, {"rack": "r1"}),)
    origins = made.origins()
    assert (origins["pool"], origins["log_level"]) == (str(file), "LINESHAFT_LOG_LEVEL")
    assert (origins["replica"], origins["state_dir"]) == ("given", "default")


def test_lists_and_tables_come_from_the_environment_too() -> None:
    """Paths by the system's separator, tables as JSON."""
    made = load(
        environ={
            "LINESHAFT_MOUNTS": os.pathsep.join(["/a", "/b"]),
            "LINESHAFT_NODES": '[{"name": "n1", "slots": 2}, {"name": "n2", "slots": 2}]',
            "LINESHAFT_QUOTAS": '{"ml": 1}',
            "LINESHAFT_HTTP_PORT": "8080",
        }
    )
    assert made.mounts == (Path("/a"), Path("/b"))
    assert [node.name for node in made.nodes] == ["n1", "n2"]
    assert (made.quotas, made.http_port) == ({"ml": 1}, 8080)


def test_faults_are_told_all_at_once_with_the_nearest_name(tmp_path: Path) -> None:
    """Where, which key, what is wrong, what was meant."""
    file = tmp_path / "lineshaft.toml"
    file.write_text('stat_dir = "x"\nhttp_port = 99999\nnodes = []\nstore_url = "nowhere"\n')
    environ = {"LINESHAFT_BUS_URLS": "nats://x", "LINESHAFT_LOG_LEVEL": "loud"}
    with pytest.raises(SettingsError) as caught:
        load(file, environ)
    faults = "\n".join(caught.value.faults)
    assert len(caught.value.faults) == 6
    assert f"{file}: stat_dir: unknown setting; the nearest known is 'state_dir'" in faults
    assert "LINESHAFT_BUS_URLS: unknown; the nearest known is LINESHAFT_BUS_URL" in faults
    for name in ("http_port", "nodes", "store_url", "log_level"):
        assert f"{name}: must" in faults


@pytest.mark.parametrize("text", ["a = ", "\x00", "pool = 1", "[[nodes]]\nname='a'\ncolor='red'"])
def test_no_file_breaks_the_reader(tmp_path: Path, text: str) -> None:
    """Whatever is in the file, faults are what comes out."""
    file = tmp_path / "lineshaft.toml"
    file.write_text(text)
    with pytest.raises(SettingsError):
        load(file, {})


def test_variables_of_others_are_let_alone() -> None:
    """Agents, ranks and the installer have variables with the same beginning."""
    load(environ={"LINESHAFT_AGENT_SOCKET": "/x", "LINESHAFT_TORCH_INDEX": "y"})


def test_a_secret_shows_itself_only_when_asked(tmp_path: Path) -> None:
    """Neither a representation nor a dump of the settings holds it."""
    made = load(environ={"LINESHAFT_BUS_TOKEN": "hush"})
    assert "hush" not in repr(made) + str(made) + f"{made.bus_token}"
    assert made.token() == "hush"
    assert made.bus_token == Secret("hush")
    kept = tmp_path / "token"
    kept.write_text("quiet\n")
    assert load(environ={"LINESHAFT_BUS_TOKEN_FILE": str(kept)}).token() == "quiet"


def test_ports_of_probes_are_named_by_service() -> None:
    """A service that is absent has none; unknown services and shared ports are faults."""
    made = load(environ={"LINESHAFT_HEALTH_PORTS": '{"monitor": 9103, "registry": 0}'})
    assert made.health_ports == {"monitor": 9103, "registry": 0}
    assert made.health_host == "127.0.0.1"
    for table, told in (
        ('{"monitr": 1}', "'monitr' is no service"),
        ('{"monitor": 9103, "registry": 9103}', "the same port"),
        ('{"monitor": 99999}', "must be a port"),
    ):
        with pytest.raises(SettingsError, match=told):
            load(environ={"LINESHAFT_HEALTH_PORTS": table})
