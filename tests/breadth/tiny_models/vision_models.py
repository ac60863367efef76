"""Images and video: classification, features, detection, segmentation, depth, keypoints."""

from __future__ import annotations

from .model_case import TinyModel, floats, ids, ones

_VIT = {
    "image_size": 16,
    "patch_size": 4,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
}
_IMAGES = {"pixel_values": floats(2, 3, 16, 16)}
_RESNET = {
    "model_type": "resnet",
    "embedding_size": 8,
    "hidden_sizes": [8, 12, 16, 20],
    "depths": [1, 1, 1, 1],
    "layer_type": "basic",
    "out_features": ["stage2", "stage3", "stage4"],
}
_DETR = {
    "use_timm_backbone": False,
    "use_pretrained_backbone": False,
    "backbone": None,
    "d_model": 32,
    "encoder_layers": 1,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 48,
    "decoder_ffn_dim": 48,
    "num_queries": 6,
    "num_labels": 3,
}

IMAGES = (
    TinyModel(model="ViTForImageClassification", config="ViTConfig", family="vision", sizes=_VIT, inputs=_IMAGES),
    TinyModel(
        model="Dinov2Model",
        config="Dinov2Config",
        family="vision",
        sizes=_VIT,
        inputs={"pixel_values": floats(2, 3, 24, 16)},
    ),
    TinyModel(
        model="SwinForImageClassification",
        config="SwinConfig",
        family="vision",
        sizes={
            "image_size": 32,
            "patch_size": 2,
            "embed_dim": 8,
            "depths": [1, 2],
            "num_heads": [2, 4],
            "window_size": 4,
        },
        inputs={"pixel_values": floats(2, 3, 32, 32)},
    ),
    TinyModel(
        model="ConvNextForImageClassification",
        config="ConvNextConfig",
        family="vision",
        sizes={"hidden_sizes": [8, 12, 16, 20], "depths": [1, 1, 2, 1]},
        inputs={"pixel_values": floats(2, 3, 32, 32)},
    ),
    TinyModel(
        model="ResNetForImageClassification",
        config="ResNetConfig",
        family="vision",
        sizes={name: value for name, value in _RESNET.items() if name != "model_type"},
        inputs={"pixel_values": floats(2, 3, 64, 64)},
    ),
    TinyModel(
        model="ViTMAEForPreTraining",
        config="ViTMAEConfig",
        family="vision",
        sizes=_VIT
        | {
            "decoder_hidden_size": 16,
            "decoder_intermediate_size": 24,
            "decoder_num_hidden_layers": 1,
            "decoder_num_attention_heads": 2,
        },
        inputs=_IMAGES,
    ),
    TinyModel(
        model="VideoMAEForVideoClassification",
        config="VideoMAEConfig",
        family="video",
        sizes=_VIT | {"num_frames": 4, "tubelet_size": 2},
        inputs={"pixel_values": floats(1, 4, 3, 16, 16)},
    ),
)

DETECTION = (
    TinyModel(
        model="DetrForObjectDetection",
        config="DetrConfig",
        family="detection",
        sizes=_DETR | {"backbone_config": _RESNET | {"out_features": ["stage4"]}},
        inputs={"pixel_values": floats(1, 3, 64, 64), "pixel_mask": ones(1, 64, 64)},
    ),
    TinyModel(
        model="DeformableDetrForObjectDetection",
        config="DeformableDetrConfig",
        family="detection",
        sizes=_DETR | {"backbone_config": _RESNET, "num_feature_levels": 4},
        inputs={"pixel_values": floats(1, 3, 128, 96)},
    ),
    TinyModel(
        model="RTDetrForObjectDetection",
        config="RTDetrConfig",
        family="detection",
        sizes={
            "backbone_config": {
                "model_type": "rt_detr_resnet",
                "embedding_size": 8,
                "hidden_sizes": [8, 12, 16, 20],
                "depths": [1, 1, 1, 1],
                "layer_type": "basic",
                "out_features": ["stage2", "stage3", "stage4"],
            },
            "encoder_hidden_dim": 32,
            "encoder_in_channels": [12, 16, 20],
            "encoder_ffn_dim": 48,
            "encoder_attention_heads": 4,
            "d_model": 32,
            "num_queries": 6,
            "decoder_in_channels": [32, 32, 32],
            "decoder_ffn_dim": 48,
            "decoder_layers": 2,
            "decoder_attention_heads": 4,
            "num_denoising": 0,
            "num_labels": 3,
        },
        inputs={"pixel_values": floats(1, 3, 64, 64)},
    ),
    TinyModel(
        model="YolosForObjectDetection",
        config="YolosConfig",
        family="detection",
        sizes=_VIT | {"image_size": [16, 16], "num_detection_tokens": 5, "num_labels": 3},
        inputs=_IMAGES,
    ),
    TinyModel(
        model="OwlViTForObjectDetection",
        config="OwlViTConfig",
        family="detection",
        sizes={
            "text_config": {
                "vocab_size": 64,
                "hidden_size": 32,
                "intermediate_size": 48,
                "num_hidden_layers": 1,
                "num_attention_heads": 4,
                "max_position_embeddings": 16,
            },
            "vision_config": _VIT,
            "projection_dim": 32,
        },
        inputs={"input_ids": ids(2, 6), "attention_mask": ones(2, 6), "pixel_values": floats(1, 3, 16, 16)},
    ),
)

DENSE_PREDICTION = (
    TinyModel(
        model="SegformerForSemanticSegmentation",
        config="SegformerConfig",
        family="segmentation",
        sizes={
            "num_encoder_blocks": 2,
            "depths": [1, 1],
            "sr_ratios": [2, 1],
            "hidden_sizes": [8, 16],
            "patch_sizes": [7, 3],
            "strides": [4, 2],
            "num_attention_heads": [1, 2],
            "mlp_ratios": [2, 2],
            "decoder_hidden_size": 16,
        },
        inputs={"pixel_values": floats(1, 3, 32, 32)},
    ),
    TinyModel(
        model="UperNetForSemanticSegmentation",
        config="UperNetConfig",
        family="segmentation",
        sizes={
            "backbone_config": {
                "model_type": "swin",
                "image_size": 64,
                "patch_size": 4,
                "embed_dim": 8,
                "depths": [1, 1, 1, 1],
                "num_heads": [1, 1, 2, 2],
                "window_size": 4,
                "out_features": ["stage1", "stage2", "stage3", "stage4"],
            },
            "hidden_size": 16,
            "auxiliary_in_channels": 32,
            "auxiliary_channels": 8,
            "num_labels": 3,
        },
        inputs={"pixel_values": floats(1, 3, 64, 64)},
    ),
    TinyModel(
        model="SamModel",
        config="SamConfig",
        family="segmentation",
        sizes={
            "vision_config": {
                "image_size": 32,
                "patch_size": 8,
                "hidden_size": 32,
                "output_channels": 16,
                "num_pos_feats": 8,
                "num_hidden_layers": 2,
                "num_attention_heads": 4,
                "global_attn_indexes": [1],
                "window_size": 2,
                "mlp_dim": 48,
            },
            "prompt_encoder_config": {
                "image_size": 32,
                "patch_size": 8,
                "hidden_size": 16,
                "mask_input_channels": 4,
            },
            "mask_decoder_config": {
                "hidden_size": 16,
                "mlp_dim": 24,
                "num_attention_heads": 2,
                "iou_head_hidden_dim": 16,
            },
        },
        inputs={"pixel_values": floats(1, 3, 32, 32), "input_points": floats(1, 1, 1, 2)},
    ),
    TinyModel(
        model="DPTForDepthEstimation",
        config="DPTConfig",
        family="depth",
        sizes=_VIT
        | {
            "num_hidden_layers": 4,
            "backbone_out_indices": [0, 1, 2, 3],
            "neck_hidden_sizes": [8, 8, 16, 16],
            "fusion_hidden_size": 16,
            "is_hybrid": False,
        },
        inputs=_IMAGES,
    ),
    TinyModel(
        model="VitPoseForPoseEstimation",
        config="VitPoseConfig",
        family="keypoints",
        sizes={
            "backbone_config": {
                "model_type": "vitpose_backbone",
                "image_size": [64, 48],
                "patch_size": [16, 16],
                "hidden_size": 32,
                "num_hidden_layers": 2,
                "num_attention_heads": 4,
                "mlp_ratio": 2,
                "out_features": ["stage2"],
            },
            "num_labels": 5,
        },
        inputs={"pixel_values": floats(1, 3, 64, 48)},
    ),
)
