//! Packed files: filler is left out, 8-bit matrices have their scales or are refused.

#![expect(clippy::unwrap_used, reason = "a test may stop at what it did not expect")]

use std::collections::BTreeMap;
use std::path::PathBuf;

use plimsoll_weights::{
    Component, Layout, NewTensor, PACK_KEY, WeightDType, WeightsError, inspect,
    open_transformer_file, padding_name, write_safetensors,
};
use tempfile::TempDir;

const MATRIX: &str = "single_transformer_blocks.0.proj_out.weight";
const SCALES: &str = "single_transformer_blocks.0.proj_out.weight_scale";

fn tensor(name: &str, dtype: WeightDType, shape: &[u64]) -> NewTensor {
    NewTensor { name: name.to_owned(), dtype, shape: shape.to_vec() }
}

/// A matrix in 8 bits with its scales, filler between.
fn sound() -> Vec<NewTensor> {
    vec![
        tensor(MATRIX, WeightDType::F8E4M3, &[3, 5]),
        tensor(&padding_name(0), WeightDType::U8, &[241]),
        tensor(SCALES, WeightDType::F32, &[3]),
        tensor("single_transformer_blocks.0.attn.norm_q.weight", WeightDType::BF16, &[8]),
    ]
}

fn file(tensors: &[NewTensor], is_packed: bool) -> (TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("diffusion_pytorch_model.safetensors");
    let key = is_packed.then(|| (PACK_KEY.to_owned(), "{\"version\":1}".to_owned()));
    let metadata: BTreeMap<_, _> = key.into_iter().collect();
    write_safetensors(&path, tensors, &metadata, 1, &|_, _, bytes| bytes.fill(0), &|_| true)
        .unwrap();
    (folder, path)
}

fn open(tensors: &[NewTensor], is_packed: bool) -> Result<Component, WeightsError> {
    let (_folder, path) = file(tensors, is_packed);
    open_transformer_file(path)
}

#[test]
fn filler_is_no_tensor_and_scales_are() {
    let catalog = open(&sound(), true).unwrap().catalog.unwrap();
    assert_eq!(catalog.layout, Layout::Packed);
    let names: Vec<_> = catalog.iter().map(|(name, _)| name.as_str()).collect();
    let expected = ["single_transformer_blocks.0.attn.norm_q.weight", MATRIX, SCALES];
    assert_eq!(names, expected);
    assert_eq!(catalog.get(MATRIX).unwrap().dtype, WeightDType::F8E4M3);
    assert_eq!(catalog.get(SCALES).unwrap().pieces[0].offset % 256, 0);
}

#[test]
fn inspect_counts_weights_and_no_more() {
    let (_folder, path) = file(&sound(), true);
    let report = inspect(&path).unwrap();
    assert_eq!(report.refusal, None);
    assert_eq!(report.components[0].layout, Some(Layout::Packed));
    assert_eq!(report.parameters, Some(15 + 8));
    assert_eq!(report.bytes, 15 + 241 + 12 + 16);
}

#[test]
fn a_file_that_does_not_say_so_is_not_read_in_this_way() {
    let error = open(&sound(), false).unwrap_err().to_string();
    assert!(error.contains("quantised checkpoint with weight scales"), "{error}");
}

#[test]
fn scales_that_do_not_fit_are_refused() {
    let without = |name: &str| -> Vec<NewTensor> {
        sound().into_iter().filter(|tensor| tensor.name != name).collect()
    };
    let with = |name: &str, dtype, shape: &[u64]| -> Vec<NewTensor> {
        let mut tensors = without(name);
        tensors.push(tensor(name, dtype, shape));
        tensors
    };
    for (tensors, what) in [
        (without(SCALES), "has no scales"),
        (without(MATRIX), "which is no 8-bit matrix"),
        (with(SCALES, WeightDType::F32, &[5]), "expected F32 [3]"),
        (with(SCALES, WeightDType::F32, &[3, 1]), "expected F32 [3]"),
        (with(SCALES, WeightDType::BF16, &[3]), "expected F32 [3]"),
        (with(MATRIX, WeightDType::BF16, &[3, 5]), "which is no 8-bit matrix"),
        (with(MATRIX, WeightDType::F8E4M3, &[3, 5, 1]), "8 bits for the shape"),
        (with(MATRIX, WeightDType::F8E4M3, &[15]), "8 bits for the shape"),
    ] {
        let error = open(&tensors, true).unwrap_err();
        assert!(matches!(error, WeightsError::Scales { .. }), "{error}");
        assert!(error.to_string().contains(what), "{error}");
    }
    // Filler of another type is a tensor like any other.
    let mut tensors = sound();
    tensors.push(tensor(&padding_name(1), WeightDType::BF16, &[4]));
    let catalog = open(&tensors, true).unwrap().catalog.unwrap();
    assert!(catalog.get(&padding_name(1)).is_some());
}
