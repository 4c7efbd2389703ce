"""Configuration: what is right reads back equal, what is wrong gives a line that names the key."""

from pathlib import Path

import pytest
import yaml

from detector.config import load_config, parse_config

CONFIGS = Path(__file__).resolve().parents[1] / "configs"
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
    assert config.grid.voxels.sparse_shape == (41, 1600, 1408)
    assert config.bev_shape == (200, 176)
    assert config.bev_depth == 2
    assert config.classes[2].size == (1.76, 0.6, 1.73)


def test_overrides_are_typed_like_the_file():
    config = load_config(
        KITTI, ["train.lr=1e-3", "classes.1.matched=0.35", "train.momentum=[0.9, 0.8]"]
    )
    assert config.train.lr == 1e-3
    assert config.classes[1].matched == 0.35
    assert config.train.momentum == (0.9, 0.8)


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
        ("classes.7.matched=1", ["classes.7", "list of 3"]),
        ("classes=[]", ["classes", "at least one"]),
        ("classes.0.size=[0, 1, 1]", ["classes.0.size", "positive"]),
        ("classes.0.matched=0.3", ["classes.0.matched", "0.45"]),
        ("classes.0.name=Pedestrian", ["classes", "twice"]),
        ("grid.voxel_size=[0.05, 0.05, 0.3]", ["grid.range", "z", "whole number of voxels"]),
        ("grid.voxel_size=[0.05, 0.05, 0]", ["grid.voxel_size", "positive"]),
        ("grid.voxel_size=[0.05, 0.05, 0.5]", ["grid.range", "z", "too few"]),
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
        ("grid=[1", ["not YAML"]),
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


def test_every_key_is_required():
    tree = yaml.safe_load(KITTI.read_text())
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
