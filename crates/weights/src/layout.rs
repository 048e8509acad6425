//! The vocabulary of recognition: which model a file belongs to, and how it is stored.
//!
//! Both are told by content (`sniff`, `recognise`), never by a file's name. A layout that cannot be
//! run yet is still recognised, so that the refusal can say what the file is and what to use.

use std::fmt;

use serde::{Serialize, Serializer};

/// The model, or part of one, that a set of tensors is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Architecture {
    /// Transformer of FLUX.1 (dev, schnell and their relatives).
    Flux1,
    /// T5 v1.1 text encoder.
    T5Encoder,
    /// CLIP text encoder.
    ClipText,
    /// Image autoencoder of Stable Diffusion and FLUX.
    AutoencoderKl,
    /// Transformer of FLUX.2.
    Flux2,
    /// Transformer of Chroma, a FLUX.1 relative with other modulation.
    Chroma,
    /// UNet of Stable Diffusion 1 or 2.
    StableDiffusion1,
    /// UNet of SDXL, base or refiner.
    Sdxl,
    /// Transformer of Stable Diffusion 3.
    StableDiffusion3,
    /// Transformer of Wan video.
    Wan,
    /// Transformer of HunyuanVideo.
    HunyuanVideo,
    /// Transformer of LTX video.
    LtxVideo,
    /// Transformer of Qwen-Image.
    QwenImage,
    /// Transformer of Lumina 2.
    Lumina2,
    /// Transformer of Z-Image.
    ZImage,
    /// Transformer of HiDream.
    HiDream,
    /// Transformer of Mochi.
    Mochi,
    /// Transformer of AuraFlow.
    AuraFlow,
    /// Transformer of Sana.
    Sana,
    /// Transformer of Cosmos.
    Cosmos,
    /// Multilingual T5 text encoder of Wan.
    Umt5Encoder,
    /// OpenCLIP text encoder in its own names.
    OpenClipText,
    /// CLIP or SigLIP image encoder.
    ImageEncoder,
    /// A decoder-only language model.
    LanguageModel,
    /// Video autoencoder of Wan.
    WanVae,
    /// LoRA or a relative: differences to another model's weights.
    Lora,
    /// ControlNet.
    ControlNet,
    /// IP-Adapter or FLUX Redux.
    ImagePrompt,
    /// None of the above.
    Unknown,
}

impl Architecture {
    /// Stable identifier, and the name for people.
    fn words(self) -> (&'static str, &'static str) {
        match self {
            Self::Flux1 => ("flux1", "FLUX.1 transformer"),
            Self::T5Encoder => ("t5", "T5 text encoder"),
            Self::ClipText => ("clip_text", "CLIP text encoder"),
            Self::AutoencoderKl => ("autoencoder_kl", "image autoencoder (VAE)"),
            Self::Flux2 => ("flux2", "FLUX.2 transformer"),
            Self::Chroma => ("chroma", "Chroma transformer"),
            Self::StableDiffusion1 => ("sd1", "Stable Diffusion 1/2 UNet"),
            Self::Sdxl => ("sdxl", "SDXL UNet"),
            Self::StableDiffusion3 => ("sd3", "Stable Diffusion 3 transformer"),
            Self::Wan => ("wan", "Wan video transformer"),
            Self::HunyuanVideo => ("hunyuan_video", "HunyuanVideo transformer"),
            Self::LtxVideo => ("ltx_video", "LTX-Video transformer"),
            Self::QwenImage => ("qwen_image", "Qwen-Image transformer"),
            Self::Lumina2 => ("lumina2", "Lumina 2 transformer"),
            Self::ZImage => ("z_image", "Z-Image transformer"),
            Self::HiDream => ("hidream", "HiDream transformer"),
            Self::Mochi => ("mochi", "Mochi transformer"),
            Self::AuraFlow => ("auraflow", "AuraFlow transformer"),
            Self::Sana => ("sana", "Sana transformer"),
            Self::Cosmos => ("cosmos", "Cosmos transformer"),
            Self::Umt5Encoder => ("umt5", "UMT5 text encoder"),
            Self::OpenClipText => ("open_clip_text", "OpenCLIP text encoder"),
            Self::ImageEncoder => ("image_encoder", "image encoder"),
            Self::LanguageModel => ("language_model", "language model"),
            Self::WanVae => ("wan_vae", "Wan video autoencoder (VAE)"),
            Self::Lora => ("lora", "LoRA"),
            Self::ControlNet => ("controlnet", "ControlNet"),
            Self::ImagePrompt => ("image_prompt", "image-prompt adapter"),
            Self::Unknown => ("unknown", "unknown model"),
        }
    }

    /// Stable identifier, as records and `--json` have it.
    pub fn id(self) -> &'static str {
        self.words().0
    }

    /// Why a file of this architecture cannot be run as a model here; `None` where it can.
    pub(crate) fn refusal(self) -> Option<&'static str> {
        match self {
            Self::Flux1 | Self::T5Encoder | Self::ClipText | Self::AutoencoderKl => None,
            Self::Lora => {
                Some("an adapter for another model, not a model: pass it where adapters go")
            }
            Self::ControlNet | Self::ImagePrompt => {
                Some("an adapter for another model, not a model; its kind is not supported yet")
            }
            Self::Unknown => Some("its tensor names belong to no model known here"),
            _ => Some("this architecture is not supported yet; FLUX.1 is"),
        }
    }
}

impl fmt::Display for Architecture {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.words().1)
    }
}

impl Serialize for Architecture {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.id())
    }
}

/// How a checkpoint is stored: its container, whose names it uses, and any coding of the weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Layout {
    /// Plain safetensors with the names of diffusers or transformers.
    Diffusers,
    /// Written by `plimsoll pack`: the names of diffusers or transformers, in streaming order; maybe 8-bit matrices.
    Packed,
    /// Plain safetensors with the names of the model's authors (BFL, ldm, Wan...).
    Original,
    /// Transformer, text encoders and VAE in one file under prefixes.
    ComfyAllInOne,
    /// fp8 weights with `scale_weight` tensors and a `scaled_fp8` marker.
    ComfyScaledFp8,
    /// ComfyUI's current quantised form: `comfy_quant` tensors or `_quantization_metadata`.
    ComfyQuant,
    /// Quantised weights with `weight_scale` tensors and no marker.
    ScaledWeights,
    /// bitsandbytes, 4 bits (NF4 or FP4).
    Bnb4Bit,
    /// bitsandbytes, 8 bits.
    Bnb8Bit,
    /// SVDQuant of nunchaku.
    SvdQuant,
    /// AWQ or GPTQ.
    PackedInt4,
    /// torchao tensor pieces.
    TorchAo,
    /// DFloat11.
    DFloat11,
    /// GGUF.
    Gguf,
    /// A ggml file from before GGUF.
    OldGgml,
    /// A pickle: `.ckpt`, `.pt`, `.bin`.
    Pickle,
    /// A zip archive.
    Zip,
    /// A gzip stream.
    Gzip,
    /// A tar archive, maybe a pickle of an old torch.
    Tar,
    /// A numpy array.
    Numpy,
    /// HDF5, as Keras writes.
    Hdf5,
    /// A PNG or JPEG picture.
    Picture,
    /// The pointer that git-lfs leaves for a file it did not fetch.
    LfsPointer,
    /// The pointer that git-annex leaves.
    AnnexPointer,
    /// HTML or XML.
    WebPage,
    /// Other text.
    Text,
}

impl Layout {
    /// Stable identifier, the name for people, and what to do where it cannot be run.
    fn words(self) -> (&'static str, &'static str, Option<&'static str>) {
        let plain = "use the plain bf16 safetensors files of the same model";
        match self {
            Self::Diffusers => ("diffusers", "diffusers safetensors", None),
            Self::Packed => ("packed", "safetensors packed for streaming", None),
            Self::Original => ("original", "safetensors file in the authors' names", None),
            Self::ComfyAllInOne => (
                "comfy_all_in_one",
                "ComfyUI all-in-one checkpoint",
                Some("not read yet: use a diffusers folder, or the file of the transformer alone"),
            ),
            Self::ComfyScaledFp8 => {
                ("comfy_scaled_fp8", "ComfyUI scaled fp8 checkpoint", Some(plain))
            }
            Self::ComfyQuant => ("comfy_quant", "ComfyUI quantised checkpoint", Some(plain)),
            Self::ScaledWeights => {
                ("scaled_weights", "quantised checkpoint with weight scales", Some(plain))
            }
            Self::Bnb4Bit => ("bnb_4bit", "bitsandbytes 4-bit (NF4) checkpoint", Some(plain)),
            Self::Bnb8Bit => ("bnb_8bit", "bitsandbytes 8-bit checkpoint", Some(plain)),
            Self::SvdQuant => ("svdquant", "nunchaku SVDQuant checkpoint", Some(plain)),
            Self::PackedInt4 => ("packed_int4", "AWQ or GPTQ checkpoint", Some(plain)),
            Self::TorchAo => ("torchao", "torchao quantised checkpoint", Some(plain)),
            Self::DFloat11 => ("dfloat11", "DFloat11 checkpoint", Some(plain)),
            Self::Gguf => ("gguf", "GGUF file", Some(plain)),
            Self::OldGgml => ("ggml", "ggml file from before GGUF", Some(plain)),
            Self::Pickle => (
                "pickle",
                "Python pickle (.ckpt, .pt, .bin)",
                Some(
                    "reading one can run any code, so it is never read: convert it to safetensors",
                ),
            ),
            Self::Zip => {
                ("zip", "zip archive", Some("unpack it, and give the safetensors file inside"))
            }
            Self::Gzip => {
                ("gzip", "gzip stream", Some("unpack it, and give the safetensors file inside"))
            }
            Self::Tar => {
                ("tar", "tar archive", Some("unpack it, and give the safetensors file inside"))
            }
            Self::Numpy => ("numpy", "numpy array", Some(plain)),
            Self::Hdf5 => ("hdf5", "HDF5 file", Some(plain)),
            Self::Picture => ("picture", "picture", Some("give the model, not what it drew")),
            Self::LfsPointer => (
                "lfs_pointer",
                "git-lfs pointer, not the file itself",
                Some("fetch the real file with `git lfs pull`"),
            ),
            Self::AnnexPointer => (
                "annex_pointer",
                "git-annex pointer, not the file itself",
                Some("fetch the real file with `git annex get`"),
            ),
            Self::WebPage => (
                "web_page",
                "web page, not a model",
                Some("the download failed (is a login or a licence needed?): fetch the file again"),
            ),
            Self::Text => ("text", "text file, not a model", Some("fetch the file again")),
        }
    }

    /// Stable identifier, as records and `--json` have it.
    pub fn id(self) -> &'static str {
        self.words().0
    }

    /// Whether the bytes are in a safetensors container.
    pub fn is_safetensors(self) -> bool {
        self <= Self::DFloat11
    }

    /// What to do instead of running a file of this layout; `None` where it can be run.
    pub(crate) fn refusal(self) -> Option<&'static str> {
        self.words().2
    }
}

impl fmt::Display for Layout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.words().1)
    }
}

impl Serialize for Layout {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.id())
    }
}
