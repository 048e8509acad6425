//! Reading configuration files: typed, with every number inside a bound.
//!
//! A configuration is untrusted. The bounds are far above any published model and far below what could
//! overflow the arithmetic of shapes.

use serde::de::DeserializeOwned;

use crate::ModelError;

/// Largest width, vocabulary or feed-forward size.
pub(crate) const WIDTH_MAX: u64 = 1 << 20;
/// Largest number of layers or heads.
pub(crate) const COUNT_MAX: u64 = 1024;

pub(crate) fn parse<T: DeserializeOwned>(component: &str, json: &str) -> Result<T, ModelError> {
    serde_json::from_str(json).map_err(|error| ModelError::Config {
        component: component.to_owned(),
        cause: error.to_string(),
    })
}

/// Refuses a number outside of `1..=max`.
pub(crate) fn bounded(
    component: &str,
    field: &str,
    value: u64,
    max: u64,
) -> Result<(), ModelError> {
    check(component, field, value, (1..=max).contains(&value), || format!("1 to {max}"))
}

/// Refuses a value for which `holds` is false.
pub(crate) fn check(
    component: &str,
    field: &str,
    value: impl std::fmt::Display,
    holds: bool,
    expected: impl FnOnce() -> String,
) -> Result<(), ModelError> {
    if holds {
        return Ok(());
    }
    Err(ModelError::Value {
        component: component.to_owned(),
        field: field.to_owned(),
        value: value.to_string(),
        expected: expected(),
    })
}
