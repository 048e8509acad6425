//! Every layout that is not run is recognised by its content and refused by its name.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::path::Path;

use plimsoll_weights::{WeightsError, inspect, open_folder, open_transformer_file};
use support::{bf16_file, file_of, raw_file, write};

/// Writes `data` as `model.safetensors`; opens it to run and inspects it: both say the same.
fn answer(data: &[u8]) -> String {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.safetensors");
    write(&path, data);
    let shorten = |line: String| line.replace(&path.display().to_string(), "M");
    let opened = shorten(open_transformer_file(&path).map(|_| ()).unwrap_err().to_string());
    let as_folder = shorten(open_folder(&path).map(|_| ()).unwrap_err().to_string());
    assert_eq!(opened, as_folder);
    match inspect(&path) {
        Ok(report) => assert_eq!(report.refusal.map(shorten).as_ref(), Some(&opened)),
        Err(error) => assert_eq!(shorten(error.to_string()), opened),
    }
    opened
}

fn check(data: &[u8], expect: &str) {
    assert_eq!(answer(data), expect);
}

const PLAIN: &str = "use the plain bf16 safetensors files of the same model";

#[test]
fn other_containers_under_the_right_name() {
    let pickle = "M: this is a Python pickle (.ckpt, .pt, .bin): reading one can run any code, so it is never read: convert it to safetensors";
    check(b"PK\x03\x04\0\0\x08\x08\0\0\0\0\0\0archive/data.pkl", pickle);
    check(b"\x80\x02\x8a\x0al\xfc\x9cF\xf9 j\xa8P\x19.\x80\x02M\xe9\x03.", pickle);
    check(b"\x80\x04\x95\x1d\0\0\0\0\0\0\0\x8c\x05posix\x8c\x06system\x93.", pickle);
    check(
        b"PK\x03\x04\0\0\x08\x08\0\0\0\0\0\0model.safetensors",
        "M: this is a zip archive: unpack it, and give the safetensors file inside",
    );
    check(
        b"version https://git-lfs.github.com/spec/v1\noid sha256:0123\nsize 23802932552\n",
        "M: this is a git-lfs pointer, not the file itself: fetch the real file with `git lfs pull`",
    );
    check(
        b"<!DOCTYPE html>\n<html lang=\"en\">",
        "M: this is a web page, not a model: the download failed (is a login or a licence needed?): fetch the file again",
    );
    check(
        b"Access to model FLUX.1-dev is restricted.",
        "M: this is a text file, not a model: fetch the file again",
    );
    check(
        b"\x1f\x8b\x08\0\0\0\0\0",
        "M: this is a gzip stream: unpack it, and give the safetensors file inside",
    );
    check(
        b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR",
        "M: this is a picture: give the model, not what it drew",
    );
    check(b"\x93NUMPY\x01\0v\0", &format!("M: this is a numpy array: {PLAIN}"));
    check(b"", "M: the file has 0 bytes, too few for a safetensors file");
    check(
        &[0; 4096],
        "M: the header is not that of a safetensors file: it does not begin with `{`",
    );
    check(
        &[0xa5; 4096],
        "M: the header would take 11936128518282651045 bytes, over the cap of 16777216: not a safetensors file, or a damaged one",
    );
}

#[test]
fn gguf_is_refused_and_reported() {
    let mut file = b"GGUF".to_vec();
    file.extend(3u32.to_le_bytes());
    file.extend([1u64.to_le_bytes(), 0u64.to_le_bytes()].concat());
    let name = b"double_blocks.0.img_attn.qkv.weight";
    file.extend((name.len() as u64).to_le_bytes());
    file.extend(name);
    file.extend(2u32.to_le_bytes());
    file.extend([256u64.to_le_bytes(), 3u64.to_le_bytes()].concat());
    file.extend(12u32.to_le_bytes());
    file.extend(0u64.to_le_bytes());
    check(&file, &format!("M: this is a GGUF file: {PLAIN}"));

    let folder = tempfile::tempdir().unwrap();
    write(&folder.path().join("flux.gguf"), &file);
    let report = inspect(folder.path().join("flux.gguf")).unwrap();
    let component = serde_json::to_value(&report.components[0]).unwrap();
    assert_eq!(component["architecture"], "flux1");
    assert_eq!(component["layout"], "gguf");
    assert_eq!((report.parameters, report.bytes), (Some(768), 432));
    assert_eq!(component["dtypes"][0]["dtype"], "Q4_K");
    // A folder that holds nothing else is the same model.
    assert_eq!(inspect(folder.path()).unwrap().components[0].layout, report.components[0].layout);
}

const BFL: (&str, &[u64]) = ("double_blocks.0.img_attn.norm.key_norm.scale", &[4]);
const DIFFUSERS: (&str, &[u64]) = ("single_transformer_blocks.0.attn.norm_q.weight", &[4]);

#[test]
fn quantised_and_packed_forms_of_flux() {
    for (tensors, layout) in [
        (
            &[BFL, ("scaled_fp8", &[2]), ("img_in.scale_weight", &[1])][..],
            "a ComfyUI scaled fp8 checkpoint",
        ),
        (
            &[BFL, ("img_in.comfy_quant", &[4]), ("img_in.weight_scale", &[1])],
            "a ComfyUI quantised checkpoint",
        ),
        (&[BFL, ("img_in.weight_scale", &[1])], "a quantised checkpoint with weight scales"),
        (
            &[BFL, ("a.weight.absmax", &[1]), ("a.weight.quant_state.bitsandbytes__nf4", &[9])],
            "a bitsandbytes 4-bit (NF4) checkpoint",
        ),
        (&[DIFFUSERS, ("a.SCB", &[1])], "a bitsandbytes 8-bit checkpoint"),
        (
            &[DIFFUSERS, ("a.qweight", &[1]), ("a.wscales", &[1]), ("a.lora_up", &[1])],
            "a nunchaku SVDQuant checkpoint",
        ),
        (
            &[DIFFUSERS, ("a.encoded_exponent", &[1]), ("a.sign_mantissa", &[1])],
            "a DFloat11 checkpoint",
        ),
        (&[DIFFUSERS, ("a.qweight", &[1]), ("a.qzeros", &[1])], "an AWQ or GPTQ checkpoint"),
        (&[DIFFUSERS, ("a._weight_qdata", &[1])], "a torchao quantised checkpoint"),
    ] {
        check(&bf16_file(tensors), &format!("M: this is {layout}: {PLAIN}"));
    }
    let all_in_one = bf16_file(&[
        ("model.diffusion_model.double_blocks.0.img_attn.norm.key_norm.scale", &[4]),
        ("text_encoders.t5xxl.transformer.encoder.block.0.layer.0.SelfAttention.q.weight", &[2, 2]),
        ("vae.decoder.mid.block_1.conv1.weight", &[2, 2, 3, 3]),
    ]);
    check(
        &all_in_one,
        "M: this is a ComfyUI all-in-one checkpoint: not read yet: use a diffusers folder, or the file of the transformer alone",
    );
    let header = r#"{"__metadata__":{"quantization_config":"{\"method\":\"svdquant\"}"}}"#;
    check(&raw_file(header, 0), &format!("M: this is a nunchaku SVDQuant checkpoint: {PLAIN}"));
}

#[test]
fn an_all_in_one_checkpoint_is_reported_by_its_parts() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("all.safetensors");
    write(
        &path,
        file_of(&[
            ("model.diffusion_model.double_blocks.0.img_attn.norm.key_norm.scale", "BF16", &[4]),
            ("model.diffusion_model.img_in.weight", "F8_E4M3", &[8, 64]),
            (
                "text_encoders.clip_l.transformer.text_model.embeddings.token_embedding.weight",
                "F16",
                &[9, 2],
            ),
            ("vae.decoder.mid.block_1.conv1.weight", "BF16", &[2, 2, 3, 3]),
        ]),
    );
    let report = inspect(&path).unwrap();
    let found: Vec<_> = report
        .components
        .iter()
        .map(|c| (c.name.as_str(), c.architecture.unwrap().id(), c.tensors, c.bytes))
        .collect();
    assert_eq!(
        found,
        [
            ("text_encoder", "clip_text", 1, 36),
            ("transformer", "flux1", 2, 520),
            ("vae", "autoencoder_kl", 1, 72),
        ]
    );
    assert_eq!(report.components[1].dtypes[0].dtype, "F8_E4M3");
}

#[test]
fn other_models() {
    let later = "this architecture is not supported yet; FLUX.1 is";
    for (name, expect) in [
        ("distilled_guidance_layer.in_proj.bias", format!("holds a Chroma transformer: {later}")),
        ("single_stream_modulation.lin.weight", format!("holds a FLUX.2 transformer: {later}")),
        ("label_emb.0.0.weight", format!("holds an SDXL UNet: {later}")),
        ("model.diffusion_model.label_emb.0.0.weight", format!("holds an SDXL UNet: {later}")),
        ("head.modulation", format!("holds a Wan video transformer: {later}")),
        ("txt_in.individual_token_refiner.blocks.0.adaLN_modulation.1.bias", format!("holds a HunyuanVideo transformer: {later}")),
        ("joint_blocks.0.context_block.adaLN_modulation.1.bias", format!("holds a Stable Diffusion 3 transformer: {later}")),
        ("lora_unet_double_blocks_0_img_attn_qkv.lora_down.weight", "holds a LoRA: an adapter for another model, not a model: pass it where adapters go".to_owned()),
        ("controlnet_blocks.0.weight", "holds a ControlNet: an adapter for another model, not a model; its kind is not supported yet".to_owned()),
        ("something.else", "holds an unknown model: its tensor names belong to no model known here".to_owned()),
        ("decoder.mid.block_1.conv1.weight", "this is a safetensors file in the authors' names: a VAE in the names of ldm is not read yet: use the diffusers folder `vae`".to_owned()),
    ] {
        let both = [(name, &[2u64, 2][..]), BFL];
        // Chroma and FLUX.2 are told even beside a FLUX.1 tensor.
        let tensors = if name.starts_with("distilled") || name.starts_with("single_stream") { &both[..] } else { &both[..1] };
        check(&bf16_file(tensors), &format!("M: {expect}"));
    }
}

#[test]
fn one_component_is_not_a_pipeline() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("t5.safetensors");
    write(&path, bf16_file(&[("encoder.block.0.layer.0.SelfAttention.q.weight", &[2, 2])]));
    let shorten = |error: WeightsError| error.to_string().replace(&path.display().to_string(), "M");
    assert_eq!(
        shorten(open_folder(&path).unwrap_err()),
        "M: holds a T5 text encoder: one component alone: give the pipeline folder (the one with model_index.json)"
    );
    assert_eq!(
        shorten(open_transformer_file(&path).unwrap_err()),
        "M: class `FluxTransformer2DModel` should hold a FLUX.1 transformer, but the file holds a T5 text encoder"
    );
    assert_eq!(inspect(&path).unwrap().refusal, None);
}

/// Opens a pipeline folder with this model index and no more.
fn check_pipeline(class_name: &str) {
    let folder = tempfile::tempdir().unwrap();
    let index = folder.path().join("model_index.json");
    write(&index, format!("{{\"_class_name\": \"{class_name}\"}}"));
    let expect = format!(
        "{}: the pipeline `{class_name}` is not supported yet; FluxPipeline is",
        index.display()
    );
    assert_eq!(open_folder(folder.path()).unwrap_err().to_string(), expect);
    assert_eq!(inspect(folder.path()).unwrap().refusal, Some(expect));
}

#[test]
fn other_pipelines() {
    for class_name in [
        "StableDiffusionXLPipeline",
        "WanPipeline",
        "HunyuanVideoPipeline",
        "ChromaPipeline",
        "Flux2Pipeline",
        "FluxFillPipeline",
        "FluxKontextPipeline",
    ] {
        check_pipeline(class_name);
    }
}

#[test]
fn the_older_form_of_svdquant_is_two_files() {
    let folder = tempfile::tempdir().unwrap();
    write(
        &folder.path().join("transformer_blocks.safetensors"),
        bf16_file(&[("transformer_blocks.0.qkv_proj.qweight", &[4])]),
    );
    write(
        &folder.path().join("unquantized_layers.safetensors"),
        bf16_file(&[("x_embedder.weight", &[4, 2])]),
    );
    let expect =
        format!("{}: this is a nunchaku SVDQuant checkpoint: {PLAIN}", folder.path().display());
    assert_eq!(open_transformer_file(folder.path()).map(|_| ()).unwrap_err().to_string(), expect);
    let report = inspect(folder.path()).unwrap();
    assert_eq!((report.refusal, report.tensors), (Some(expect), 2));
}

#[test]
fn a_folder_without_a_model_says_so() {
    let folder = tempfile::tempdir().unwrap();
    let expect = |error: WeightsError| {
        assert!(error.to_string().contains("model_index.json: not found"), "{error}");
    };
    expect(open_folder(folder.path()).unwrap_err());
    expect(inspect(folder.path()).unwrap_err());
    assert!(inspect(Path::new("/no/such")).is_err());
}
