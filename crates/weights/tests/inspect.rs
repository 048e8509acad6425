//! `inspect` on the repository's models: the figures, and the table people see.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use plimsoll_weights::{Layout, inspect};
use support::{demo_model, repository};

#[test]
fn the_demo_model_is_reported_in_full() {
    let report = inspect(demo_model()).unwrap();
    assert_eq!(report.pipeline_class.as_deref(), Some("FluxPipeline"));
    assert_eq!((report.kind, &report.refusal), ("pipeline", &None));
    let parameters = 10_046_016 + 599_552 + 786_944 + 2_391_779;
    assert_eq!((report.parameters, report.bytes), (Some(parameters), 2 * parameters));
    let table = report.to_string();
    let at = format!("{}", demo_model().display());
    let expected = "\
AT: FluxPipeline, 26.37 MiB
  component       holds                                                layout                 tensors  parameters       size  dtypes
  scheduler       FlowMatchEulerDiscreteScheduler                      -                            -           -          -  -
  text_encoder    CLIP text encoder                                    diffusers safetensors       52     599,552   1.14 MiB  BF16 x52
  text_encoder_2  T5 text encoder                                      diffusers safetensors       30     786,944   1.50 MiB  BF16 x30
  tokenizer       CLIPTokenizer                                        -                            -           -          -  -
  tokenizer_2     T5TokenizerFast                                      -                            -           -          -  -
  transformer     FLUX.1 transformer, schnell-like (without guidance)  diffusers safetensors      256  10,046,016  19.16 MiB  BF16 x256
  vae             image autoencoder (VAE)                              diffusers safetensors      180   2,391,779   4.56 MiB  BF16 x180
  total                                                                                           518  13,824,291  26.37 MiB
";
    assert_eq!(table.replace(&at, "AT"), expected, "\n{table}");
}

#[test]
fn the_fields_for_programs_are_stable() {
    let path = repository().join("tests/golden/dev-tiny/flux1-dev-tiny.safetensors");
    let report = serde_json::to_value(inspect(path).unwrap()).unwrap();
    assert_eq!(report["kind"], "file");
    assert!(report["refusal"].is_null() && report["pipeline_class"].is_null());
    let component = &report["components"][0];
    for (key, value) in [
        ("name", "transformer"),
        ("architecture", "flux1"),
        ("layout", "original"),
        ("variant", "dev-like (with guidance)"),
    ] {
        assert_eq!(component[key], value, "{key}");
    }
    let bytes = component["bytes"].as_u64().unwrap();
    let of_dtypes = component["dtypes"].as_array().unwrap();
    assert_eq!(bytes, of_dtypes.iter().map(|row| row["bytes"].as_u64().unwrap()).sum::<u64>());
    assert!(component["files"][0]["bytes"].as_u64().unwrap() > bytes);
    let keys: Vec<&String> = report.as_object().unwrap().keys().collect();
    assert_eq!(
        keys,
        [
            "bytes",
            "components",
            "kind",
            "parameters",
            "path",
            "pipeline_class",
            "refusal",
            "tensors"
        ]
    );
    let keys: Vec<&String> = component.as_object().unwrap().keys().collect();
    assert_eq!(
        keys,
        [
            "architecture",
            "bytes",
            "class_name",
            "dtypes",
            "files",
            "layout",
            "name",
            "parameters",
            "tensors",
            "variant"
        ]
    );
}

#[test]
fn a_component_folder_is_reported_alone() {
    let report = inspect(repository().join("tests/golden/dev-tiny/transformer")).unwrap();
    assert_eq!((report.kind, report.components.len()), ("folder", 1));
    assert_eq!(report.components[0].files.len(), 2);
    assert_eq!(report.components[0].layout, Some(Layout::Diffusers));
    assert_eq!(report.refusal, None);
}
