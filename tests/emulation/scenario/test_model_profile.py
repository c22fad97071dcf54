"""Profiles of models: what files hold, what is made of them, and what is refused."""

import json
import pickle
import re
import runpy
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from emulation.scenario.profiles.model_profile import ModelLayer, ModelProfile, decode, load, shipped
from emulation.scenario.profiles.profile_errors import ProfileError

PUBLISHED = {
    "alexnet": (61_100_840, 16),
    "bert_base": (109_482_240, 199),
    "bert_large": (335_141_888, 391),
    "googlenet": (6_624_904, 173),
    "gpt2": (124_439_808, 148),
    "llama7b": (6_738_415_616, 291),
    "resnet50": (25_557_032, 161),
    "vgg16": (138_357_544, 32),
}

HAND = """
name = "toy"
batch = 2
source = {times = "a clock"}
[[layers]]
name = "a"
tensors = {weight = 10, bias = 2}
forward_ns = 100
backward_ns = 200
[[layers]]
name = "b"
tensors = {weight = 30}
forward_ns = 50
backward_ns = 50
"""


@pytest.mark.parametrize("name", shipped())
def test_shipped_profiles_have_the_published_parameters(name: str) -> None:
    profile = load(name)
    assert (profile.elements, len(profile.tensor_names)) == PUBLISHED[name]
    assert profile.name == name
    assert profile.compute_ns == 3 * profile.forward_ns > 0
    assert {"parameters", "times", "batch"} <= profile.source.keys()


def test_shipped_profiles_are_what_their_tool_writes(tmp_path: Path) -> None:
    runpy.run_path("tools/profiles/make_models.py")["write"](tmp_path)
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {
        path.name: path.read_text() for path in shipped().values()
    }


def test_a_file_becomes_buckets_and_what_schedules_are_made_from() -> None:
    profile = decode(HAND, "toy.toml")
    assert [(bucket.parameters, bucket.elements, bucket.ready_fraction) for bucket in profile.buckets(129)] == [
        ((2, 1, 0), 42, 1.0)
    ]
    assert [bucket.ready_fraction for bucket in profile.buckets(120)] == [0.2, 1.0]
    made = profile.schedule_profile()
    assert [(tensor.name, tensor.elements, tensor.layer, tensor.ready_ns) for tensor in made.tensors] == [
        ("b.weight", 30, 1, 50),
        ("a.bias", 2, 0, 250),
        ("a.weight", 10, 0, 250),
    ]
    assert ([layer.forward_ns for layer in made.layers], made.backward_ns) == ([100, 50], 250)
    assert made.arrivals == (0, 2, 1)  # of one layer, whose gradients come together, a schedule takes the last first
    half = profile.schedule_profile(200)
    assert (half.forward_ns, half.backward_ns, [each.ready_ns for each in half.tensors]) == (75, 125, [25, 125, 125])


def test_times_follow_from_operations_batch_and_device() -> None:
    profile = load("resnet50")
    assert profile.at(batch=64, device_flops=1e13).compute_ns == pytest.approx(2 * profile.compute_ns, rel=1e-5)
    assert profile.at(device_flops=2e13).compute_ns == pytest.approx(profile.compute_ns / 2, rel=1e-5)
    assert pickle.loads(pickle.dumps(profile)) == profile, "each method runs in a process of its own"
    assert profile.at(batch=32) is profile
    with pytest.raises(ProfileError, match=r"toy: its times are of a batch of 2 on one device"):
        decode(HAND, "toy.toml").at(batch=4)


def test_ranks_may_differ() -> None:
    profile = decode(HAND.replace("batch = 2", "batch = 2\nskew = [1, 1.5]"), "toy.toml")
    assert profile.rank_ns(2) == (400, 600)
    with pytest.raises(ProfileError, match="skew: 2 numbers for 3 workers"):
        profile.rank_ns(3)
    assert decode(HAND, "toy.toml").rank_ns(3) == 400


NAMES = st.text(min_size=1, max_size=8)
LAYERS = st.builds(
    ModelLayer,
    name=NAMES,
    tensors=st.dictionaries(NAMES, st.integers(1, 1 << 40), min_size=1, max_size=3),
    forward_ns=st.integers(0, 10**9),
    backward_ns=st.integers(0, 10**9),
    flops=st.floats(0, 1e15),
    output=st.integers(0, 1 << 40),
)


@given(
    st.lists(LAYERS, min_size=1, max_size=4, unique_by=lambda layer: layer.name),
    NAMES,
    st.dictionaries(NAMES, st.text(max_size=9), max_size=2),
    st.lists(st.floats(0.01, 100), max_size=2),
)
def test_what_is_written_is_read_again(
    layers: list[ModelLayer], name: str, source: dict[str, str], skew: list[float]
) -> None:
    profile = ModelProfile(name, tuple(layers), source, skew=tuple(skew))
    assert decode(profile.toml(), "f") == profile
    assert decode(json.dumps(profile.document()), "f") == profile


@given(st.data())
def test_damaged_files_are_refused_in_one_line(data: st.DataObject) -> None:
    place = data.draw(st.integers(0, len(HAND)))
    text = HAND[:place] + data.draw(st.text(max_size=3)) + HAND[place + data.draw(st.integers(0, 9)) :]
    said = "f.toml: nothing"
    try:
        decode(text, "f.toml")
    except ProfileError as error:
        said = str(error)
    assert re.fullmatch(r"f\.toml: [^\n]+", said)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("forward_ns = 50", "forward_ns = -50", r"layers\[1\]\.forward_ns \(b\): Expected `int` >= 0"),
        ("weight = 30", "weight = 0", r"layers\[1\]\.tensors.* \(b\): Expected `int` >= 1"),
        ('name = "b"', 'name = "a"', "layers: 'a' is there twice"),
        ("batch = 2", 'dtype = "float16"', "dtype: 'float16' is unknown; allowed: float32"),
        ("batch = 2", "batches = 2", "unknown field `batches`"),
        ("batch = 2", "device_flops = 1e12", "layers: 'a' has times beside device_flops"),
        ("forward_ns = 50", "forward_ns = 3_600_000_000_000", "an iteration computes for"),
        ("name = ", "name : ", "not valid TOML: .* line 2"),
        ("tensors", "# tensors", "no tensors"),
    ],
)
def test_what_cannot_be_is_named(old: str, new: str, message: str) -> None:
    with pytest.raises(ProfileError, match=rf"^toy\.toml: .*{message}"):
        decode(HAND.replace(old, new), "toy.toml")


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(ProfileError, match="resnet51: no such file; shipped profiles: alexnet, "):
        load("resnet51")
    with pytest.raises(ProfileError, match="cannot be read"):
        load("absent.toml", tmp_path)
    (tmp_path / "deep.json").write_text('{"a":' * 100_000)
    with pytest.raises(ProfileError, match=r"deep\.json: not valid JSON"):
        load("deep.json", tmp_path)
    (tmp_path / "latin.toml").write_bytes(b'name = "\xff"')
    with pytest.raises(ProfileError, match=r"latin\.toml: byte 8: not UTF-8 text"):
        load("latin.toml", tmp_path)
