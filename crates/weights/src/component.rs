//! One component: its class, its config as text, its catalog.

use std::path::Path;

use serde::de::IgnoredAny;
use serde_json::Value;

use crate::catalog::Catalog;
use crate::error::WeightsError;
use crate::header::Pairs;
use crate::source::Source;

/// Greatest JSON config. Real ones take a few kilobytes.
pub(crate) const CONFIG_BYTES_MAX: u64 = 1 << 20;

/// One component of a pipeline.
#[derive(Clone, Debug)]
pub struct Component {
    /// Class of diffusers or transformers, such as `FluxTransformer2DModel`.
    pub class_name: String,
    /// The component's config as JSON text: `config.json`, `scheduler_config.json` or
    /// `tokenizer_config.json`; empty where it has none.
    pub config_json: String,
    /// Its weights; `None` for a scheduler or tokenizer.
    pub catalog: Option<Catalog>,
}

/// The text of a config, proven to be a JSON object; `None` where the file does not exist.
pub(crate) fn read_config(source: &Source, relative: &str) -> Result<Option<String>, WeightsError> {
    let path = source.shown(relative);
    let Some(data) = source.read(relative, CONFIG_BYTES_MAX, "a config")? else {
        return Ok(None);
    };
    let text = String::from_utf8(data.into_owned())
        .map_err(|e| WeightsError::json(&path, format!("not UTF-8 text: {e}")))?;
    match serde_json::from_str::<Pairs<IgnoredAny>>(&text) {
        Ok(_) => Ok(Some(text)),
        Err(error) => Err(WeightsError::json(&path, error)),
    }
}

/// Refuses a config that says that the weights are coded.
pub(crate) fn refuse_quantized(path: &Path, config_json: &str) -> Result<(), WeightsError> {
    let config: Value = serde_json::from_str(config_json).unwrap_or_default();
    for key in ["quantization_config", "dfloat11_config", "compression_config"] {
        let Some(value) = config.get(key).filter(|value| !value.is_null()) else {
            continue;
        };
        let method = value.get("quant_method").and_then(Value::as_str).unwrap_or(key);
        return Err(WeightsError::Quantized { path: path.to_owned(), method: method.to_owned() });
    }
    Ok(())
}
