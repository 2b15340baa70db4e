"""Rows of networks in plain PyTorch, which the files beside this one build. How to add one stands in `models/catalogue.py`."""

from __future__ import annotations

from dmlc.models import audio, classifiers, dense_prediction, generative, graphs, recommenders, recurrent, sequences
from dmlc.models.catalogue import Architecture, builders

ROWS = [
    Architecture("lstm_lm", "recurrent", recurrent.lstm_lm, True, loss="ce", tests=("forward", "backward")),
    Architecture("gru_lm", "recurrent", recurrent.gru_lm, True, loss="ce"),
    Architecture("rnn_lm", "recurrent", recurrent.rnn_lm, True, loss="ce"),
    Architecture("lstm_tagger", "recurrent", recurrent.lstm_tagger, loss="squares"),
    Architecture("gru_tagger", "recurrent", recurrent.gru_tagger, loss="squares"),
    Architecture("stateful", "recurrent", recurrent.stateful, loss="squares"),
    Architecture("cells", "recurrent", recurrent.cells, loss="mse"),
    Architecture("dlrm_sum", "recommender", recommenders.dlrm_sum, loss="bce", tests=("forward", "backward")),
    Architecture("dlrm_mean", "recommender", recommenders.dlrm_mean, loss="bce"),
    Architecture("bags", "recommender", recommenders.bags, loss="squares", plan="auto"),
    Architecture("wide_and_deep", "recommender", recommenders.wide_and_deep, loss="bce"),
    Architecture("mobilenet_v2", "vision", classifiers.mobilenet_v2, loss="ce"),
    Architecture("mobilenet_v3", "vision", classifiers.mobilenet_v3, loss="ce"),
    Architecture("efficientnet", "vision", classifiers.efficientnet, loss="ce"),
    Architecture("densenet", "vision", classifiers.densenet, loss="ce"),
    Architecture("inception", "vision", classifiers.inception, loss="ce"),
    Architecture("vgg", "vision", classifiers.vgg, loss="ce"),
    Architecture("resnext", "vision", classifiers.resnext, loss="ce"),
    Architecture("mixer", "vision", classifiers.mixer, loss="ce"),
    Architecture("unet", "segmentation", dense_prediction.unet, loss="mse", tests=("forward", "backward")),
    Architecture("unet_nearest", "segmentation", dense_prediction.unet_nearest, loss="mse"),
    Architecture("unet_bilinear", "segmentation", dense_prediction.unet_bilinear, loss="mse"),
    Architecture("deeplab", "segmentation", dense_prediction.deeplab, loss="mse"),
    Architecture("keypoints", "detection", dense_prediction.keypoints, loss="squares"),
    Architecture("retinanet", "detection", dense_prediction.retinanet, loss="squares", tests=("forward",)),
    Architecture("fcos", "detection", dense_prediction.fcos, loss="squares"),
    Architecture("mel_net", "audio", audio.mel_net, loss="ce"),
    Architecture("wavenet", "audio", audio.wavenet, loss="mse"),
    Architecture("tcn", "audio", audio.tcn, loss="mse"),
    Architecture("conformer", "audio", audio.conformer, loss="mse"),
    Architecture("vae", "generative", generative.vae, loss="own", tests=("forward", "backward")),
    Architecture("autoencoder", "generative", generative.autoencoder, loss="mse"),
    Architecture("dcgan", "generative", generative.dcgan, loss="mse"),
    Architecture("super_resolution", "generative", generative.super_resolution, loss="mse"),
    Architecture("denoiser", "generative", generative.denoiser, loss="mse"),
    Architecture("graph_net", "graph", graphs.graph_net, loss="squares", tests=("forward", "backward")),
    Architecture("translator", "encoder-decoder", sequences.translator, loss="ce"),
    Architecture("translator_norm_first", "encoder-decoder", sequences.translator_norm_first, loss="ce"),
    Architecture("attention_pool", "encoder", sequences.attention_pool, loss="squares"),
    Architecture("llama_complex", "decoder", sequences.llama_complex, loss="ce"),
    Architecture("llama_polar", "decoder", sequences.llama_polar, loss="ce"),
    Architecture("experts", "mixture of experts", sequences.experts, loss="ce"),
    Architecture("experts_dense", "mixture of experts", sequences.experts_dense, loss="ce"),
    Architecture("state_space", "state space", sequences.state_space, True, loss="ce"),
    Architecture("state_space_loop", "state space", sequences.state_space_loop, True, loss="ce"),
]  # fmt: skip

globals().update(builders(ROWS))
