"""Configuration: what is right reads back equal, what is wrong gives a line that names the key."""

import time
from pathlib import Path

import pytest
import yaml

from millisecond.detector.config import least_bytes, load_config, parse_config
from millisecond.detector.models.second import build_second

CONFIGS = Path(__file__).resolve().parents[2] / "configs"
KITTI = CONFIGS / "second_kitti.yaml"


@pytest.mark.parametrize("name", ["second_kitti.yaml", "second_small.yaml"])
def test_shipped_configs_read_and_survive_the_round_trip(name):
    config = load_config(CONFIGS / name)
    assert parse_config(config.to_yaml()) == config
    hash(config.grid)  # frozen


def test_numbers_of_second_on_kitti():
    config = load_config(KITTI)
    assert config.class_names == ("Car", "Pedestrian", "Cyclist")
    assert config.grid.shape == (40, 1600, 1408)
    assert config.grid.voxel_grid.sparse_shape == (41, 1600, 1408)
    assert config.bev_cells == (2, 200, 176)
    assert config.classes[2].size == (1.76, 0.6, 1.73)


def test_overrides_are_typed_like_the_file():
    config = load_config(
        KITTI, ["train.lr=1e-3", "classes.1.matched=0.35", "train.momentum=[0.9, 0.8]"]
    )
    assert config.train.lr == 1e-3
    assert config.classes[1].matched == 0.35
    assert config.train.momentum == (0.9, 0.8)


def test_a_section_that_the_file_leaves_out_may_be_set():
    assert load_config(KITTI, ["points.intensity_scale=255"]).points.intensity_scale == 255


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("train.lrr=1", ["train.lrr", "'lr'"]),
        ("trian.lr=1", ["trian", "'train'"]),
        ("train.lr", ["train.lr", "key=value"]),
        ("train.lr=fast", ["train.lr", "'fast'", "number"]),
        ("train.lr=.nan", ["train.lr", "nan"]),
        ("train.lr=-1", ["train.lr", "-1", "positive"]),
        ("train.lr.deep=1", ["train.lr.deep", "0.003"]),
        ("train.epochs=2.5", ["train.epochs", "2.5", "whole number"]),
        ("train.epochs=true", ["train.epochs", "True", "whole number"]),
        ("train.deterministic=1", ["train.deterministic", "true or false"]),
        ("train.precision=fp8", ["train.precision", "fp8", "bf16"]),
        ("train.momentum=[0.9]", ["train.momentum", "2"]),
        ("train.momentum=[0.9, 1]", ["train.momentum", "[0.9, 1.0] is not in [0, 1)"]),
        ("postprocess.iou=1.5", ["postprocess.iou", "1.5 is not between 0 and 1"]),
        ("augment.min_points=-1", ["augment.min_points", "-1 must not be negative"]),
        ("classes.7.matched=1", ["classes.7", "list of 3"]),
        ("classes=[]", ["classes", "at least one"]),
        ("classes.0.size=[0, 1, 1]", ["classes.0.size", "positive"]),
        ("classes.0.matched=0.3", ["classes.0.matched", "0.45"]),
        ("classes.0.name=Pedestrian", ["classes", "twice"]),
        ("classes.0.also=[Van, Cyclist]", ["classes", "Cyclist", "two classes"]),
        ("augment.thin=1", ["augment.thin", "below 1"]),
        ("train.views=3", ["train.views", "batch_size"]),
        ("grid.voxel_size=[0.05, 0.05, 0.3]", ["grid.range", "z", "whole number of voxels"]),
        ("grid.voxel_size=[0.05, 0.05, 0]", ["grid.voxel_size", "positive"]),
        ("grid.voxel_size=[0.05, 0.05, 0.5]", ["grid.range", "z", "too few"]),
        ("grid.range=[0, -40, -3, 70.4, 40, -0.7]", ["23 voxels along z", "at least 24"]),
        ("grid.range=[0, -40, -3, 70.5, 40, 1]", ["grid.range", "1410", "multiple of 16"]),
        ("grid.range=[0, 40, -3, 70.4, -40, 1]", ["grid.range", "empty along y"]),
        ("grid.max_points=0", ["grid.max_points", "positive"]),
        (
            "model.encoder.channels=[16, 32, 64]",
            ["model.encoder.channels", "3 values instead of 4"],
        ),
        ("model.encoder.out_channels=0", ["model.encoder.out_channels", "positive"]),
        ("model.bev.strides=[1]", ["model.bev.strides", "1 values where layers has 2"]),
        ("postprocess.score=1.5", ["postprocess.score", "1.5"]),
        ("augment.sample={Van: 3}", ["augment.sample.Van", "unknown class"]),
        ("augment.scale=[1.1, 0.9]", ["augment.scale"]),
        ("grid=5", ["grid", "mapping"]),
        ("grid=[1", [" grid: '[1': is not YAML"]),
        ("points.columms=[x]", ["points.columms", "unknown key", "'columns'"]),
        ("points.intensity_scale=-255", ["points.intensity_scale", "-255", "positive"]),
        ("train.learning_rate=1", ["train.learning_rate", "'lr'"]),
        ("train.num_workers=1", ["train.num_workers", "'workers'"]),
        ("train.workers=100000", ["train.workers", "512"]),
        ("train.workers=-1", ["train.workers", "negative"]),
        ("train.workers=all", ["train.workers", "'all' is not a whole number, nor auto"]),
        ("train.precision=int8", ["train.precision", "'int8' is none of auto, fp32, bf16, fp16"]),
        ("train.seed=99999999999999999999", ["train.seed", "beyond"]),
        ("train.lr=" + "9" * 400, ["train.lr", "not a number"]),
        ("train.lr=" + "9" * 5000, ["cannot be read"]),
        ("train.lr=2026-99-99", ["cannot be read", "month"]),
        ("grid={[1, 2]: 3}", ["a key is a word"]),
        ("grid={a: &a [1], b: *a}", ["alias"]),
        ("train.seed=010", ["train.seed", "'010' is not a whole number"]),
        ("train.seed=1:30", ["train.seed", "'1:30' is not a whole number"]),
        ("train.seed=0x10", ["train.seed", "'0x10' is not a whole number"]),
        ("train.lr=1_0.5", ["train.lr", "'1_0.5' is not a number"]),
        ("train.lr=.inf", ["train.lr", "not a number"]),
        ("classes.0.size=[1e300, 1, 1]", ["classes.0.size"]),
        ("classes.0.bottom=-1e308", ["classes.0.bottom"]),
        ("augment.scale=[1e-300, 1e300]", ["augment.scale"]),
        ("grid=!!bool perhaps", ["tag", "bool"]),
        ("grid=!!int ''", ["tag", "int"]),
        ("grid=[!!timestamp soon]", ["tag", "timestamp"]),
        ("grid=" + "[" * 3000 + "]" * 3000, ["nested too deeply"]),
        ("grid=" + "x" * 2_000_000, ["2000000 characters"]),
        ("grid=" + "x" * 1000, ["grid", "xxx ...", "mapping"]),
        ("classes.0.name=''", ["classes.0.name", "one word"]),
        ("classes.0.name=Big car", ["classes.0.name", "one word"]),
        ("classes.0.name=DontCare", ["classes.0.name", "no box"]),
        ("classes.0.name=pedestrian", ["classes", "twice"]),
        ("grid.voxel_size=[1e-300, 0.05, 0.1]", ["grid.range", "voxels"]),
        ("grid.range=[0, -40000, -3, 70400, 40000, 1]", ["grid.range", "GiB", "this machine has"]),
        ("model.bev.channels=[100000000, 256]", ["model", "GiB", "this machine has"]),
        ("model.encoder.out_channels=100000000", ["model", "GiB"]),
        ("postprocess.after_nms=2000000000", ["postprocess.after_nms", "GiB"]),
        ("grid.max_points=1000000000", ["grid.max_points", "GiB"]),
        ("grid.max_points=100000000000", ["grid.max_points", "beyond"]),
        ("grid.crop_to_image=1", ["grid.crop_to_image", "true or false"]),
    ],
)
def test_wrong_values_are_one_line_with_the_key(override, words):
    with pytest.raises(ValueError) as caught:
        load_config(KITTI, [override])
    message = str(caught.value)
    assert "\n" not in message
    assert message.startswith(str(KITTI))
    for word in words:
        assert word in message


def test_the_crop_is_a_choice_with_a_default():
    assert load_config(KITTI).grid.crop_to_image
    whole = load_config(KITTI, ["grid.crop_to_image=false"])
    assert not whole.grid.crop_to_image
    assert parse_config(whole.to_yaml()) == whole


def test_a_bomb_of_aliases_goes_off_nowhere(tmp_path):
    layers = [f"l{i}: &l{i} [{', '.join([f'*l{i - 1}'] * 9)}]" for i in range(1, 40)]
    bomb = "\n".join(["l0: &l0 [lol]", *layers])
    began = time.monotonic()
    with pytest.raises(ValueError, match=r"line 2: has an alias"):
        parse_config(bomb)
    assert time.monotonic() - began < 30


def test_least_memory_is_that_of_the_network():
    """Against the parameters that are really there, and the largest map."""
    for name in ("second_kitti.yaml", "second_small.yaml"):
        config = load_config(CONFIGS / name)
        weights = sum(p.numel() for p in build_second(config).parameters())
        parts = least_bytes(config)
        _, y, x = config.bev_cells
        together = 4 * y * x * sum(config.model.bev.upsample_channels)
        maps = parts["model"] + parts["grid.range"] - 4 * weights
        assert together < maps < 4 * together


def test_every_key_without_a_default_is_required():
    tree = yaml.safe_load(KITTI.read_text())
    without = {key: tree["train"].pop(key) for key in ("precision", "workers")}
    assert without == {"precision": "auto", "workers": "auto"}
    assert parse_config(yaml.safe_dump(tree)) == load_config(KITTI)
    for section in ("grid", "loss", "postprocess", "augment", "train"):
        for key in tree[section]:
            smaller = {**tree, section: {k: v for k, v in tree[section].items() if k != key}}
            with pytest.raises(ValueError, match=rf"{section}\.{key}: is missing"):
                parse_config(yaml.safe_dump(smaller))


def test_files_that_are_no_configuration(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"none\.yaml"):
        load_config(tmp_path / "none.yaml")
    for content in (
        b"",
        b"- 1\n- 2\n",
        b"\xff\xfe\x00",
        b"{a: [}",
        b"a: 1\na: 2\n",
        b"!!python/name:os.system",
    ):
        path = tmp_path / "bad.yaml"
        path.write_bytes(content)
        with pytest.raises(ValueError, match=r"bad\.yaml") as caught:
            load_config(path)
        assert "\n" not in str(caught.value)
