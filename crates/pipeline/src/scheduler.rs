//! The flow-match Euler sampler: from the folder's options and a picture size to one number a step.
//!
//! The model predicts a velocity v, and a step is `x += (sigma[i + 1] - sigma[i]) * v` with sigma
//! falling from 1 to 0; how fast it falls is all that a sampler of this kind decides.
//! Each value is computed in the order and precision of the reference (numpy f32, torch f32), so
//! that the sigmas are its sigmas bit for bit.
//!
//! Main types: [`FlowMatchEuler`] (the options), [`Schedule`] (the numbers of one run).
//! Invariants: a [`Schedule`] never rises, begins at 1 or less, ends at exactly 0 and holds only
//! finite numbers.
//! Not here: the step itself, which is an op of the graph.
//!
//! # Source
//! diffusers 0.42.1 `FlowMatchEulerDiscreteScheduler.set_timesteps`, called as by
//! `FluxPipeline.__call__`: with `sigmas = linspace(1, 1 / steps, steps)` and `mu` of the token
//! count.

use half::bf16;
use serde::Deserialize;

use crate::error::{SchedulerError, excerpt};
use crate::math::exp;

const CLASS_NAME: &str = "FlowMatchEulerDiscreteScheduler";
/// Real files have about 500 bytes.
const FILE_BYTES_MAX: u64 = 64 * 1024;
/// The greatest number of steps of one picture.
pub const STEPS_MAX: u32 = 10_000;
/// The pipeline divides the scheduler's timestep by this before the transformer sees it, and the
/// transformer multiplies by it again.
const TIMESTEP_SCALE: f32 = 1000.0;

/// The sampler of FLUX.1 and its options.
#[derive(Clone, Debug, PartialEq)]
pub struct FlowMatchEuler {
    train_timesteps: f32,
    shift: Shift,
}

/// How the even spacing of sigma is bent toward the noisy end.
#[derive(Clone, Debug, PartialEq)]
pub enum Shift {
    /// `s * sigma / (1 + (s - 1) * sigma)` for every picture size; 1 leaves sigma as it is.
    Static {
        /// The factor s.
        factor: f64,
    },
    /// By a `mu` that grows linearly with the tokens of the image.
    Dynamic {
        /// `mu` at `tokens_base`.
        mu_base: f64,
        /// `mu` at `tokens_max`; larger pictures go on along the same line.
        mu_max: f64,
        /// Where the line starts, in tokens.
        tokens_base: u32,
        /// The line's second point, in tokens.
        tokens_max: u32,
        /// What is done with `mu`.
        form: ShiftForm,
    },
}

/// The weight w of `sigma' = w / (w + 1 / sigma - 1)`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ShiftForm {
    /// w = e^mu.
    Exponential,
    /// w = mu.
    Linear,
}

/// How the numbers that enter the timestep embedding are rounded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TimestepRounding {
    /// In f32 throughout: what the model was meant to see, and what an f32 pipeline does.
    F32,
    /// As a bf16 diffusers pipeline: the timestep is rounded to bf16 after each operation, so that
    /// 954.02 becomes 956 and a guidance of 3.5 acts as 3.504.
    Bf16,
}

/// The numbers of one run, a value a step.
#[derive(Clone, Debug, PartialEq)]
pub struct Schedule {
    /// Noise levels, one more than steps: from the first step's to the final 0.
    pub sigmas: Vec<f32>,
    /// What the transformer receives, one a step, on the scale of sigma; it multiplies by 1000
    /// itself.
    pub timesteps: Vec<f32>,
    /// `sigmas[i + 1] - sigmas[i]`, one a step, none positive: the factor of the velocity.
    pub deltas: Vec<f32>,
    /// The shift parameter of this picture size, where the shift depends on the size.
    pub mu: Option<f64>,
}

/// The options as they stand in the file; an absent or null one has the reference's default.
#[derive(Deserialize)]
struct Config {
    #[serde(rename = "_class_name")]
    class_name: Option<String>,
    num_train_timesteps: Option<f64>,
    shift: Option<f64>,
    use_dynamic_shifting: Option<bool>,
    base_shift: Option<f64>,
    max_shift: Option<f64>,
    base_image_seq_len: Option<f64>,
    max_image_seq_len: Option<f64>,
    time_shift_type: Option<String>,
    invert_sigmas: Option<bool>,
    shift_terminal: Option<f64>,
    stochastic_sampling: Option<bool>,
    use_karras_sigmas: Option<bool>,
    use_exponential_sigmas: Option<bool>,
    use_beta_sigmas: Option<bool>,
    use_flow_sigmas: Option<bool>,
}

impl FlowMatchEuler {
    /// Reads the bytes of a `scheduler_config.json`.
    ///
    /// # Errors
    /// [`SchedulerError`] for a file that is too large or not JSON of this form, another class, an
    /// option that would change the schedule and is not implemented, or a number out of range.
    pub fn parse(json: &[u8]) -> Result<Self, SchedulerError> {
        let bytes = u64::try_from(json.len()).unwrap_or(u64::MAX);
        if bytes > FILE_BYTES_MAX {
            return Err(SchedulerError::FileTooLarge { bytes, cap_bytes: FILE_BYTES_MAX });
        }
        let config: Config = serde_json::from_slice(json)
            .map_err(|error| SchedulerError::Syntax { reason: excerpt(&error.to_string()) })?;
        config.check_class()?;
        config.check_options()?;
        Ok(Self {
            train_timesteps: config.train_timesteps()?,
            shift: if config.use_dynamic_shifting.unwrap_or(false) {
                config.dynamic_shift()?
            } else {
                Shift::Static { factor: in_range("shift", config.shift.unwrap_or(1.0), 1e-3, 1e3)? }
            },
        })
    }

    /// How sigma is bent.
    pub fn shift(&self) -> &Shift {
        &self.shift
    }

    /// The numbers of a run of `steps` steps over an image of `image_tokens` tokens (a token is 16
    /// by 16 pixels in FLUX).
    ///
    /// # Errors
    /// [`SchedulerError::StepsOutOfRange`], or [`SchedulerError::NotFalling`] where the options
    /// give this size a shift that no schedule comes from.
    pub fn schedule(
        &self,
        steps: u32,
        image_tokens: u64,
        rounding: TimestepRounding,
    ) -> Result<Schedule, SchedulerError> {
        if steps == 0 || steps > STEPS_MAX {
            return Err(SchedulerError::StepsOutOfRange { steps, steps_max: STEPS_MAX });
        }
        let mu = self.shift.mu(image_tokens);
        let mut sigmas: Vec<f32> =
            even_sigmas(steps).map(|sigma| self.shift.bend(sigma, mu)).collect();
        let timesteps = sigmas
            .iter()
            .map(|sigma| received_timestep(sigma * self.train_timesteps, rounding))
            .collect();
        sigmas.push(0.0);
        let deltas: Vec<f32> = sigmas.windows(2).map(|pair| pair[1] - pair[0]).collect();

        let first_bad = deltas.iter().position(|delta| delta.is_nan() || *delta > 0.0);
        let starts_high = sigmas[0] > 1.0;
        if let Some(step_index) = first_bad.or(starts_high.then_some(0)) {
            let mu = mu.unwrap_or(0.0);
            return Err(SchedulerError::NotFalling { step_index, image_tokens, mu });
        }
        Ok(Schedule { sigmas, timesteps, deltas, mu })
    }
}

impl Shift {
    /// `calculate_shift` of the pipeline, in f64 as there; `None` for a static shift.
    fn mu(&self, image_tokens: u64) -> Option<f64> {
        let Self::Dynamic { mu_base, mu_max, tokens_base, tokens_max, .. } = self else {
            return None;
        };
        let (tokens_base, tokens_max) = (f64::from(*tokens_base), f64::from(*tokens_max));
        let slope = (mu_max - mu_base) / (tokens_max - tokens_base);
        let offset = mu_base - slope * tokens_base;
        #[allow(clippy::cast_precision_loss)] // A token count is far below 2^53.
        Some(image_tokens as f64 * slope + offset)
    }

    /// One sigma, in numpy's f32: a Python float beside an f32 array is rounded to f32 first.
    #[allow(clippy::cast_possible_truncation)] // Those roundings.
    fn bend(&self, sigma: f32, mu: Option<f64>) -> f32 {
        match self {
            Self::Static { factor } => {
                *factor as f32 * sigma / (1.0 + (*factor - 1.0) as f32 * sigma)
            }
            Self::Dynamic { form, .. } => {
                let mu = mu.unwrap_or(0.0);
                let weight = match form {
                    ShiftForm::Exponential => exp(mu) as f32,
                    ShiftForm::Linear => mu as f32,
                };
                weight / (weight + (1.0 / sigma - 1.0))
            }
        }
    }
}

/// `numpy.linspace(1, 1 / steps, steps)` in f64, then rounded to f32.
fn even_sigmas(steps: u32) -> impl Iterator<Item = f32> {
    let last = 1.0 / f64::from(steps);
    let spacing = if steps > 1 { (last - 1.0) / f64::from(steps - 1) } else { 0.0 };
    (0..steps).map(move |index| {
        let is_last = index > 0 && index + 1 == steps;
        #[allow(clippy::cast_possible_truncation)] // The reference's own rounding.
        if is_last { last as f32 } else { (f64::from(index) * spacing + 1.0) as f32 }
    })
}

/// What reaches the transformer for a timestep on the scheduler's scale.
fn received_timestep(timestep: f32, rounding: TimestepRounding) -> f32 {
    match rounding {
        TimestepRounding::F32 => timestep / TIMESTEP_SCALE,
        TimestepRounding::Bf16 => {
            let received = round_bf16(round_bf16(timestep) / TIMESTEP_SCALE);
            round_bf16(received * TIMESTEP_SCALE) / TIMESTEP_SCALE
        }
    }
}

/// What the guidance embedding receives: the transformer multiplies it by 1000 itself, in bf16 too
/// where it runs in bf16.
pub fn received_guidance(guidance: f32, rounding: TimestepRounding) -> f32 {
    match rounding {
        TimestepRounding::F32 => guidance,
        TimestepRounding::Bf16 => {
            round_bf16(round_bf16(guidance) * TIMESTEP_SCALE) / TIMESTEP_SCALE
        }
    }
}

fn round_bf16(value: f32) -> f32 {
    bf16::from_f32(value).to_f32()
}

fn in_range(option: &'static str, value: f64, min: f64, max: f64) -> Result<f64, SchedulerError> {
    if (min..=max).contains(&value) {
        Ok(value)
    } else {
        let expected = match option {
            "shift" => "0.001 to 1000",
            "base_shift" | "max_shift" => "-50 to 50",
            _ => "a whole number from 1 to 1000000",
        };
        Err(SchedulerError::OptionOutOfRange { option, value, expected })
    }
}

fn whole(option: &'static str, value: f64) -> Result<u32, SchedulerError> {
    let in_range = in_range(option, value, 1.0, 1e6)?;
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // 1 to 10^6.
    let whole = in_range as u32;
    if f64::from(whole) == value {
        Ok(whole)
    } else {
        let expected = "a whole number from 1 to 1000000";
        Err(SchedulerError::OptionOutOfRange { option, value, expected })
    }
}

impl Config {
    fn check_class(&self) -> Result<(), SchedulerError> {
        match self.class_name.as_deref() {
            Some(CLASS_NAME) => Ok(()),
            Some(other) => Err(SchedulerError::ClassUnknown {
                class_name: excerpt(other),
                expected: CLASS_NAME,
            }),
            None => Err(SchedulerError::ClassMissing { expected: CLASS_NAME }),
        }
    }

    /// Options that the reference lets change the numbers and that are not implemented here.
    fn check_options(&self) -> Result<(), SchedulerError> {
        let refused = [
            ("invert_sigmas", self.invert_sigmas == Some(true)),
            // Zero is no terminal to the reference, which tests the number for truth.
            ("shift_terminal", self.shift_terminal.is_some_and(|terminal| terminal != 0.0)),
            ("stochastic_sampling", self.stochastic_sampling == Some(true)),
            ("use_karras_sigmas", self.use_karras_sigmas == Some(true)),
            ("use_exponential_sigmas", self.use_exponential_sigmas == Some(true)),
            ("use_beta_sigmas", self.use_beta_sigmas == Some(true)),
            ("use_flow_sigmas", self.use_flow_sigmas == Some(true)),
        ];
        match refused.into_iter().find(|(_, is_set)| *is_set) {
            Some((option, _)) => Err(SchedulerError::OptionUnsupported { option }),
            None => Ok(()),
        }
    }

    fn train_timesteps(&self) -> Result<f32, SchedulerError> {
        let count = whole("num_train_timesteps", self.num_train_timesteps.unwrap_or(1000.0))?;
        #[allow(clippy::cast_precision_loss)] // At most 10^6, exact in f32.
        Ok(count as f32)
    }

    fn dynamic_shift(&self) -> Result<Shift, SchedulerError> {
        let tokens_base = whole("base_image_seq_len", self.base_image_seq_len.unwrap_or(256.0))?;
        let tokens_max = whole("max_image_seq_len", self.max_image_seq_len.unwrap_or(4096.0))?;
        if tokens_base >= tokens_max {
            return Err(SchedulerError::OptionOutOfRange {
                option: "max_image_seq_len",
                value: f64::from(tokens_max),
                expected: "more than base_image_seq_len",
            });
        }
        Ok(Shift::Dynamic {
            mu_base: in_range("base_shift", self.base_shift.unwrap_or(0.5), -50.0, 50.0)?,
            mu_max: in_range("max_shift", self.max_shift.unwrap_or(1.15), -50.0, 50.0)?,
            tokens_base,
            tokens_max,
            form: match self.time_shift_type.as_deref() {
                None | Some("exponential") => ShiftForm::Exponential,
                Some("linear") => ShiftForm::Linear,
                Some(other) => {
                    return Err(SchedulerError::ShiftTypeUnknown { found: excerpt(other) });
                }
            },
        })
    }
}
