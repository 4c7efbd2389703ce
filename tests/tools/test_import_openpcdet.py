"""Import of OpenPCDet checkpoints: both layouts give one network, everything else is one line."""

import os
import pickle
import zipfile

import pytest
import torch

from millisecond.detector.config import load_config
from millisecond.detector.import_openpcdet import import_openpcdet
from millisecond.detector.models.second import build_second
from millisecond.detector.weights import load_weights, restore
from millisecond.tools import import_openpcdet as tool
from tests.helpers.small_detector import RING

NARROW = [
    "model.encoder={channels: [4, 6, 8, 8], out_channels: 10}",
    "model.bev={layers: [1, 1], channels: [6, 8], strides: [1, 2], upsample_channels: [4, 4]}",
]


@pytest.fixture(scope="module")
def config():
    return load_config(tool.CONFIG, NARROW)


@pytest.fixture(scope="module")
def state(config):
    """A random state under OpenPCDet's names, of spconv 2's layout."""
    torch.manual_seed(0)
    tensors = {}

    def norm(name, channels):
        for part in ("weight", "bias", "running_mean", "running_var"):
            tensors[f"{name}.{part}"] = torch.rand(channels)
        tensors[f"{name}.num_batches_tracked"] = torch.tensor(7)

    def sparse(name, kernel, inputs, outputs):
        tensors[f"backbone_3d.{name}.0.weight"] = torch.randn(outputs, *kernel, inputs)
        norm(f"backbone_3d.{name}.1", outputs)

    def flat(conv, batch_norm, shape, outputs):
        tensors[f"backbone_2d.{conv}.weight"] = torch.randn(shape)
        norm(f"backbone_2d.{batch_norm}", outputs)

    cube = (3, 3, 3)
    sparse("conv_input", cube, 4, 4)
    sparse("conv1.0", cube, 4, 4)
    for level, (narrow, wide) in enumerate(((4, 6), (6, 8), (8, 8)), start=2):
        for i in range(3):
            sparse(f"conv{level}.{i}", cube, wide if i else narrow, wide)
    sparse("conv_out", (3, 1, 1), 8, 10)
    flat("blocks.0.1", "blocks.0.2", (6, 20, 3, 3), 6)
    flat("blocks.0.4", "blocks.0.5", (6, 6, 3, 3), 6)
    flat("blocks.1.1", "blocks.1.2", (8, 6, 3, 3), 8)
    flat("blocks.1.4", "blocks.1.5", (8, 8, 3, 3), 8)
    flat("deblocks.0.0", "deblocks.0.1", (6, 4, 1, 1), 4)
    flat("deblocks.1.0", "deblocks.1.1", (8, 4, 2, 2), 4)
    for head, outputs in (("cls", 18), ("box", 42), ("dir_cls", 12)):
        tensors[f"dense_head.conv_{head}.weight"] = torch.randn(outputs, 8, 1, 1)
        tensors[f"dense_head.conv_{head}.bias"] = torch.randn(outputs)
    return tensors | {"global_step": torch.tensor([3])}


def of_spconv_1(state):
    return {
        k: t.permute(1, 2, 3, 4, 0).contiguous() if t.ndim == 5 else t for k, t in state.items()
    }


def save(path, state):
    torch.save({"epoch": 80, "it": 1, "model_state": state, "version": "pcdet+0.6.0"}, path)
    return path


def test_both_layouts_give_the_same_network(tmp_path, state, config):
    new = import_openpcdet(save(tmp_path / "2.pth", state), config).state_dict()
    path = save(tmp_path / "1.pth", of_spconv_1(state))
    old = import_openpcdet(str(path), config).state_dict()
    for name, tensor in new.items():
        assert torch.equal(tensor, old[name]), name
    theirs = state["backbone_3d.conv3.0.0.weight"]
    ours = new["encoder.downs.1.weight"]
    for z, y, x in ((0, 0, 0), (0, 1, 2), (2, 0, 1)):
        assert torch.equal(ours[(z * 3 + y) * 3 + x], theirs[:, z, y, x].T)
    first, theirs = (
        new["backbone.blocks.0.0.conv.weight"],
        state["backbone_2d.blocks.0.1.weight"],
    )
    for z, channel in ((0, 3), (1, 0), (1, 9)):  # 10 channels of two layers
        assert torch.equal(first[:, z * 10 + channel], theirs[:, channel * 2 + z])
    assert torch.equal(
        new["backbone.upsamples.1.conv.weight"], state["backbone_2d.deblocks.1.0.weight"]
    )


def test_the_tool_writes_weights_that_are_enough_to_detect(tmp_path, state, config, capsys):
    yaml, source = tmp_path / "narrow.yaml", save(tmp_path / "in.pth", state)
    yaml.write_text(config.to_yaml())
    target = tmp_path / "out.safetensors"
    assert tool.main([str(source), str(target), "--config", str(yaml)]) == 0
    assert "Pedestrian" in capsys.readouterr().out
    read, tensors = load_weights(target)
    assert read == config
    model = build_second(read)
    restore(model, tensors, target)
    for name, tensor in import_openpcdet(source, config).state_dict().items():
        assert torch.equal(model.state_dict()[name], tensor)


def test_a_network_of_further_features(tmp_path, state, config):
    wide = load_config(tool.CONFIG, [*NARROW, RING])
    first = torch.randn(4, 3, 3, 3, 5)
    path = save(tmp_path / "in.pth", {**state, "backbone_3d.conv_input.0.weight": first})
    ours = import_openpcdet(path, wide).state_dict()["encoder.levels.0.0.weight"]
    assert torch.equal(ours[5], first[:, 0, 1, 2].T)
    with pytest.raises(ValueError, match="conv_input"):
        import_openpcdet(path, config)


def without(state, name):
    return {k: t for k, t in state.items() if k != name}


WRONG_STATES = {
    "another layer": lambda s: {**s, "roi_head.fc.weight": torch.ones(2)},
    "a missing norm": lambda s: without(s, "backbone_2d.blocks.1.5.running_var"),
    "a missing convolution": lambda s: without(s, "backbone_3d.conv2.1.0.weight"),
    "other channels": lambda s: {**s, "dense_head.conv_cls.bias": torch.ones(6)},
    "half of each layout": lambda s: {
        **s,
        "backbone_3d.conv2.0.0.weight": of_spconv_1(s)["backbone_3d.conv2.0.0.weight"],
    },
    "a shape of neither layout": lambda s: {
        **s,
        "backbone_3d.conv2.0.0.weight": torch.ones(3, 6, 3, 3, 4),
    },
}


@pytest.mark.parametrize("kind", WRONG_STATES)
def test_another_network_is_one_line(tmp_path, state, config, kind):
    path = save(tmp_path / "other.pth", WRONG_STATES[kind](state))
    with pytest.raises(ValueError, match=r"other\.pth") as caught:
        import_openpcdet(path, config)
    assert "\n" not in str(caught.value)


def test_a_shape_that_fits_both_layouts_is_refused(tmp_path, state):
    config = load_config(tool.CONFIG, ["model.encoder={channels: [3, 3, 3, 3], out_channels: 3}"])
    cube = {k: torch.ones(3, 3, 3, 3, 3) if t.ndim == 5 else t for k, t in state.items()}
    cube["backbone_3d.conv_input.0.weight"] = torch.ones(3, 3, 3, 3, 4)
    with pytest.raises(ValueError, match="fits both layouts"):
        import_openpcdet(save(tmp_path / "cube.pth", cube), config)


class Payload:
    """Unpickled, it would make a folder."""

    def __init__(self, folder):
        self.folder = str(folder)

    def __reduce__(self):
        return os.mkdir, (self.folder,)


def test_hostile_files_are_refused_and_do_not_run(tmp_path, state, config):
    trap, bias = tmp_path / "trap", "dense_head.conv_cls.bias"
    good = save(tmp_path / "good.pth", state)
    files = {
        "zip.pth": lambda p: torch.save({"model_state": state, "extra": Payload(trap)}, p),
        "legacy.pth": lambda p: torch.save(
            {"model_state": Payload(trap)}, p, _use_new_zipfile_serialization=False
        ),
        "pickle.pth": lambda p: p.write_bytes(pickle.dumps(Payload(trap))),
        "truncated.pth": lambda p: p.write_bytes(good.read_bytes()[: good.stat().st_size // 2]),
        "empty.pth": lambda p: p.write_bytes(b""),
        "noise.pth": lambda p: p.write_bytes(os.urandom(4096)),
        "list.pth": lambda p: torch.save([1, 2], p),
        "no_tensors.pth": lambda p: torch.save({"model_state": {"a": 1}}, p),
        "no_names.pth": lambda p: torch.save({"model_state": {1: torch.ones(1)}}, p),
        "sparse.pth": lambda p: save(p, {**state, bias: state[bias].to_sparse()}),
        "complex.pth": lambda p: save(p, {**state, bias: state[bias] + 1j}),
        "huge.pth": lambda p: save(p, {**state, bias: torch.ones(1).expand(1 << 45)}),
        "not_torch.pth": lambda p: zipfile.ZipFile(p, "w").writestr("a", "b"),
    }
    for name, write in files.items():
        path = tmp_path / name
        write(path)
        with pytest.raises(ValueError, match=name) as caught:
            import_openpcdet(path, config)
        assert "\n" not in str(caught.value)
    assert not trap.exists()


def test_the_tool_says_one_line_and_exits_with_2(tmp_path, state, capsys):
    (tmp_path / "file").write_text("")
    source = save(tmp_path / "in.pth", state)
    for told, *arguments in (
        ("none.pth: no such checkpoint", tmp_path / "none.pth", tmp_path / "out"),
        (f"{tmp_path}: is not a checkpoint", tmp_path, tmp_path / "out"),
        # a narrow network where the default is expected
        ("in.pth", source, tmp_path / "out"),
        ("none.yaml", source, tmp_path / "out", "--config", tmp_path / "none.yaml"),
        ("in.pth", source, tmp_path / "out", "--config", source),
    ):
        assert tool.main([str(a) for a in arguments]) == 2
        out, err = capsys.readouterr()
        assert not out
        assert err.startswith("error: ") and told in err
        assert err.count("\n") == 1
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda t: t.index_fill(0, torch.tensor([0]), torch.nan), "are not finite"),
        (lambda t: t.index_fill(0, torch.tensor([0]), -torch.inf), "are not finite"),
        (lambda t: t.to(torch.int8), "is of type int8"),
    ],
)
def test_values_that_no_training_leaves_are_not_imported(tmp_path, state, config, spoil, said):
    name = "backbone_2d.blocks.0.1.weight"
    path = save(tmp_path / "bad.pth", {**state, name: spoil(state[name])})
    with pytest.raises(ValueError, match=said):
        import_openpcdet(path, config)


def test_what_is_there_is_not_written_over(tmp_path, state, config, capsys):
    yaml, source = tmp_path / "narrow.yaml", save(tmp_path / "in.pth", state)
    yaml.write_text(config.to_yaml())
    other = tmp_path / "weights.safetensors"
    other.write_bytes(b"of days")
    before = source.read_bytes()
    for target in (source, other):
        assert tool.main([str(source), str(target), "--config", str(yaml)]) == 2
        assert f"error: {target}: already exists" in capsys.readouterr().err
    assert source.read_bytes() == before and other.read_bytes() == b"of days"


def test_a_bomb_is_not_unpacked(tmp_path, config, monkeypatch):
    monkeypatch.setattr("millisecond.detector.import_openpcdet.LARGEST", 1 << 26)
    path = tmp_path / "bomb.pth"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("archive/data.pkl", pickle.dumps({}))
        with archive.open("archive/data/0", "w", force_zip64=True) as entry:
            for _ in range(65):
                entry.write(bytes(1 << 20))
    assert path.stat().st_size < 1 << 20
    with pytest.raises(ValueError, match="more than a checkpoint of SECOND has"):
        import_openpcdet(path, config)
