"""Sparse convolution, voxelizing and box geometry on tensors."""

from ops.boxes import Kept, iou_3d, iou_bev, nms, overlap_bev, paired_overlap_bev

__all__ = [
    "Kept",
    "iou_3d",
    "iou_bev",
    "nms",
    "overlap_bev",
    "paired_overlap_bev",
]
