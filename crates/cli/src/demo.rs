//! The demo model, built into the binary.

/// Files of the pipeline folder by relative path; empty where the build left them out.
#[cfg(not(feature = "embed-demo"))]
pub(crate) const FILES: &[(&str, &[u8])] = &[];

#[cfg(feature = "embed-demo")]
macro_rules! embedded {
    ($($path:literal),* $(,)?) => {
        &[$((
            $path,
            include_bytes!(concat!(env!("CARGO_MANIFEST_DIR"), "/../../demo/model/", $path)),
        )),*]
    };
}

/// Files of the pipeline folder by relative path; empty where the build left them out.
#[cfg(feature = "embed-demo")]
pub(crate) const FILES: &[(&str, &[u8])] = embedded![
    "model_index.json",
    "plimsoll.json",
    "scheduler/scheduler_config.json",
    "text_encoder/config.json",
    "text_encoder/model.safetensors",
    "text_encoder_2/config.json",
    "text_encoder_2/model.safetensors",
    "tokenizer/merges.txt",
    "tokenizer/tokenizer.json",
    "tokenizer/tokenizer_config.json",
    "tokenizer/vocab.json",
    "tokenizer_2/tokenizer.json",
    "tokenizer_2/tokenizer_config.json",
    "transformer/config.json",
    "transformer/diffusion_pytorch_model.safetensors",
    "vae/config.json",
    "vae/diffusion_pytorch_model.safetensors",
];
