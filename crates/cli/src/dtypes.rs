//! `--dtype`: what a run computes in, and what single components are stored as.

use std::fmt;
use std::str::FromStr;

use plimsoll_graph::DType;
use plimsoll_models::flux;
use plimsoll_pipeline::Storage;

use crate::failure::Failure;

/// Components by the names that a person may give them.
const NAMES: [(&str, &str); 6] = [
    ("transformer", flux::TRANSFORMER),
    ("t5", flux::T5),
    ("clip", flux::CLIP),
    ("vae", flux::VAE),
    (flux::T5, flux::T5),
    (flux::CLIP, flux::CLIP),
];

/// What a component is stored as, as typed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stored {
    Bf16,
    Fp8,
}

/// `bf16`, `f32`, `transformer=fp8`, or several with commas between them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct DTypes {
    /// Of the run, or of all components of a pack.
    whole: Option<DType>,
    /// Component and what it is stored as, in the order typed.
    parts: Vec<(&'static str, Stored)>,
}

impl FromStr for DTypes {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut found = Self::default();
        for item in text.split(',') {
            let Some((name, dtype)) = item.split_once('=') else {
                let dtype = match item {
                    "bf16" => DType::BF16,
                    "f32" => DType::F32,
                    "fp8" => return Err("fp8 is for one component: transformer=fp8".to_owned()),
                    _ => {
                        return Err(format!(
                            "`{item}` is none of bf16, f32, COMPONENT=bf16 and transformer=fp8"
                        ));
                    }
                };
                if found.whole.replace(dtype).is_some() {
                    return Err("two dtypes for the whole".to_owned());
                }
                continue;
            };
            let known = NAMES.iter().find(|(known, _)| *known == name);
            let Some(&(_, component)) = known else {
                return Err(format!("`{name}` is none of transformer, t5, clip and vae"));
            };
            let stored = match dtype {
                "bf16" => Stored::Bf16,
                "fp8" if component == flux::TRANSFORMER => Stored::Fp8,
                "fp8" => return Err(format!("fp8 is for the transformer; {name} stays bf16")),
                "f32" => return Err(format!("f32 is for the whole, not for {name} alone")),
                _ => return Err(format!("`{dtype}` is neither bf16 nor fp8")),
            };
            if found.parts.iter().any(|(other, _)| *other == component) {
                return Err(format!("two dtypes for {name}"));
            }
            found.parts.push((component, stored));
        }
        Ok(found)
    }
}

impl fmt::Display for DTypes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let parts = self.parts.iter().map(|(component, stored)| {
            let dtype = if *stored == Stored::Fp8 { "fp8" } else { "bf16" };
            format!("{component}={dtype}")
        });
        let whole = self.whole.map(|dtype| dtype.name().to_owned());
        let all: Vec<String> = whole.into_iter().chain(parts).collect();
        f.write_str(if all.is_empty() { "bf16".to_owned() } else { all.join(",") }.as_str())
    }
}

impl DTypes {
    /// How components are said to be stored, each once.
    pub(crate) fn parts(&self) -> &[(&'static str, Stored)] {
        &self.parts
    }

    /// What a run computes in: bf16 where nothing was said.
    pub(crate) fn run(&self) -> DType {
        self.whole.unwrap_or(DType::BF16)
    }

    /// What the transformer is stored as, where that was said: whether in 8 bits.
    pub(crate) fn is_transformer_narrow(&self) -> Option<bool> {
        self.of(flux::TRANSFORMER).map(|stored| stored == Stored::Fp8)
    }

    /// Whether a component's storage was named.
    pub(crate) fn has_parts(&self) -> bool {
        !self.parts.is_empty()
    }

    /// Whether a component was asked to be stored in 8 bits.
    pub(crate) fn is_narrow(&self, component: &str) -> bool {
        self.of(component) == Some(Stored::Fp8)
    }

    /// The same with another dtype of the run; what components are stored as stays.
    pub(crate) fn with_run(mut self, run: DType) -> Self {
        self.whole = Some(run);
        self
    }

    /// The same with the transformer in 8 bits, or as its files have it.
    pub(crate) fn with_narrow(mut self, is_narrow: bool) -> Self {
        self.parts.retain(|(component, _)| *component != flux::TRANSFORMER);
        if is_narrow {
            self.parts.push((flux::TRANSFORMER, Stored::Fp8));
        }
        self
    }

    fn of(&self, component: &str) -> Option<Stored> {
        self.parts.iter().find(|(name, _)| *name == component).map(|(_, stored)| *stored)
    }

    /// What a component of a model that is known by its shapes is kept as in device memory.
    pub(crate) fn of_shapes(&self, component: &str, entry: &str) -> DType {
        let is_narrow = self.of(component) == Some(Stored::Fp8);
        if is_narrow && flux::is_block_matrix(component, entry) {
            DType::F8E4M3
        } else {
            DType::BF16
        }
    }

    /// What `pack` writes of a component.
    ///
    /// # Errors
    /// [`Failure::Usage`] for f32, which would only double what is there.
    pub(crate) fn storage(&self, component: &str) -> Result<Storage, Failure> {
        match (self.of(component), self.whole) {
            (_, Some(DType::F32)) => {
                Err(Failure::Usage("f32 is not packed: bf16 and transformer=fp8 are".to_owned()))
            }
            (Some(Stored::Fp8), _) => Ok(Storage::F8),
            (Some(Stored::Bf16), _) | (None, Some(_)) => Ok(Storage::BF16),
            (None, None) => Ok(Storage::Kept),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_typed_is_understood_or_refused() {
        let dtypes: DTypes = "f32,transformer=fp8,t5=bf16".parse().expect("all known");
        assert_eq!(dtypes.run(), DType::F32);
        assert_eq!(dtypes.of(flux::TRANSFORMER), Some(Stored::Fp8));
        assert_eq!(dtypes.of(flux::T5), Some(Stored::Bf16));
        assert_eq!(dtypes.of(flux::VAE), None);
        assert_eq!(dtypes.to_string(), "f32,transformer=fp8,text_encoder_2=bf16");
        assert_eq!(dtypes.to_string().parse(), Ok(dtypes.clone()));
        // Two axes: what is computed in, and what is stored.
        let wide = dtypes.clone().with_narrow(false);
        assert_eq!(wide.to_string(), "f32,text_encoder_2=bf16");
        assert_eq!(
            dtypes.with_run(DType::BF16).to_string(),
            "bf16,transformer=fp8,text_encoder_2=bf16"
        );
        assert_eq!(DTypes::default().with_narrow(true).to_string(), "transformer=fp8");
        assert_eq!("transformer=fp8".parse::<DTypes>().map(|it| it.run()), Ok(DType::BF16));
        for (text, what) in [
            ("fp8", "transformer=fp8"),
            ("f16", "none of"),
            ("", "none of"),
            ("unet=fp8", "none of"),
            ("vae=fp8", "stays bf16"),
            ("transformer=f32", "the whole"),
            ("transformer=nf4", "neither"),
            ("t5=bf16,text_encoder_2=bf16", "two"),
            ("bf16,f32", "two"),
        ] {
            let error = text.parse::<DTypes>().expect_err(text);
            assert!(error.contains(what), "{text}: {error}");
        }
    }
}
