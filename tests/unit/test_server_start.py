"""What `dragoman serve` refuses before it accepts connections: language models that the server cannot show."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from dragoman.config.server import ServerConfig
from small_run import Cli

pytest.importorskip("uvicorn", reason="needs uvicorn: pip install 'dragoman[serve]'")
GOLDEN = Path(__file__).resolve().parents[1] / "golden"


def test_language_models_without_the_viewer_are_refused(cli: Cli) -> None:
    """Alone or together with a translation model; a model that was given is never left out silently."""
    for models in (["language_v1"], ["model_v1", "language_v1"], ["model_v1", "language_v1", "recurrent_lm_v1"]):
        code, out, err = cli("serve", *(GOLDEN / name for name in models), "--no-viewer", "--port", "0")
        assert (code, out) == (2, b"") and "language models are served by the viewer only" in err
        assert [name in err for name in models] == [name != "model_v1" for name in models]
        assert err.count("dragoman: ") == 1 and "remove --no-viewer" in err


def test_a_damaged_language_model_is_refused_at_the_start(cli: Cli, tmp_path: Path) -> None:
    model = Path(shutil.copytree(GOLDEN / "language_v1", tmp_path / "model"))
    weights = model / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-9])
    code, out, err = cli("serve", model, "--port", "0")
    assert (code, out) == (1, b"") and "model.safetensors" in err and err.count("dragoman: ") == 1


def test_a_server_of_language_models_has_the_viewer() -> None:
    from starlette.testclient import TestClient

    from dragoman.serve.app import check, create_application

    models, said = [{"path": str(GOLDEN / "language_v1")}], list[str]()

    def read() -> ServerConfig:
        return ServerConfig.parse({"models": models}, "test")

    check(read())
    app, reloader = create_application(read(), said.append, read)
    with TestClient(app, base_url="http://localhost") as client:
        assert client.portal is not None
        client.portal.call(reloader.start)
        page = client.get("/")
        (model,) = client.get("/viewer/models").json()["models"]
        assert client.post("/translate", json={}).status_code == 404
        assert client.get("/viewer/", headers={"host": "other.example"}).status_code == 400
        assert client.get("/readyz").json() == {"status": "ok"}
        said.clear()
        models.append({"path": str(GOLDEN / "model_v1")})
        client.portal.call(reloader.reload)
    assert model["writes"] == "continuation"
    assert "cannot add translation models; start it again" in said[0]
    assert page.status_code == 200 and page.url.path == "/viewer/" and "language_v1" in page.text
