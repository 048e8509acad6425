//! What a card was measured to do, and where that is kept.
//!
//! `plimsoll probe` writes a profile of the card it runs on; `plan` reads it, and a plan for a card that is not
//! there uses one of those built in and says so. Seconds decide which plan is quickest, never what is computed.

use std::io::Write;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::lt::{TUNED_MOST, TunedProduct};

/// Of the file's layout; a file of another version is measured again, not guessed at.
pub const PROFILE_VERSION: u32 = 3;
/// Far above any profile; a larger file is not one.
const FILE_BYTES_MOST: u64 = 1 << 20;
/// No card has so much memory.
const VRAM_MOST: u64 = 1 << 44;

/// What a card did at one number of rows of its products.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RowRate {
    /// Rows.
    pub rows: u64,
    /// Operations a second, two a multiply-add.
    pub flops_per_second: f64,
}

/// Rates of one implementation of products and attention.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rates {
    /// Products in bf16 by rows, ascending; between two the logarithms are interpolated.
    pub gemm: Vec<RowRate>,
    /// Products of 8-bit operands, likewise, less the quantization of one of them; empty where there are none.
    pub narrow_gemm: Vec<RowRate>,
    /// Attention with heads of 128.
    pub attention_flops_per_second: f64,
}

/// A card's rates; all figures are sustained ones, as a step of a run sees them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CardProfile {
    /// [`PROFILE_VERSION`].
    pub version: u32,
    /// Name, as the driver gives it.
    pub name: String,
    /// Architecture that its kernels are built for, `sm_90a`.
    pub arch: String,
    /// Device memory.
    pub vram_bytes: u64,
    /// What the process takes beside the arena: context, kernels, libraries, a margin.
    pub reserved_bytes: u64,
    /// Driver and libraries with which this was measured, or the folder of results it was taken from.
    pub source: String,
    /// Host to device, from pinned or registered memory, in large copies.
    pub link_bytes_per_second: f64,
    /// Of each copy whatever its size.
    pub copy_seconds: f64,
    /// Share of its speed that the compute lane loses while a copy is in flight.
    pub copy_share: f64,
    /// Device memory, bytes read and written.
    pub memory_bytes_per_second: f64,
    /// Of a kernel whatever its size, between others on the stream.
    pub launch_seconds: f64,
    /// Own kernels.
    pub own: Rates,
    /// cuBLASLt and cuDNN; absent where they were not there.
    pub libraries: Option<Rates>,
    /// Own 3x3 convolution.
    pub conv_flops_per_second: f64,
    /// Products for which cuBLASLt has a quicker algorithm of the same bits than the one that it offers first.
    #[serde(default)]
    pub tuned: Vec<TunedProduct>,
}

/// Failures of reading or writing a profile.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ProfileError {
    /// There is no folder for it.
    #[error("neither XDG_CONFIG_HOME nor HOME says where the profile of a card goes")]
    NoFolder,
    /// The file cannot be read or written.
    #[error("{}: {cause}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// The system's error.
        cause: std::io::Error,
    },
    /// The file holds something else.
    #[error("{}: no profile of version {PROFILE_VERSION} of {name}: {cause}; run `plimsoll probe`", path.display())]
    Content {
        /// The file.
        path: PathBuf,
        /// The card it should be of.
        name: String,
        /// What is wrong.
        cause: String,
    },
}

fn rate(rows: u64, tera: f64) -> RowRate {
    RowRate { rows, flops_per_second: tera * 1e12 }
}

impl CardProfile {
    /// NVIDIA H200, as `plimsoll probe` measured it on 2026-11-30 (own products of 8 bits a day later) and `bench/runs/2026-11-30-h200` before it.
    ///
    /// Products at 4608 rows run for seconds: alone and cold the layers of FLUX reach 708 to 803 TFLOP/s, which no
    /// step sees.
    pub fn h200() -> Self {
        Self {
            version: PROFILE_VERSION,
            name: "NVIDIA H200".to_owned(),
            arch: "sm_90a".to_owned(),
            vram_bytes: 150_109_880_320,
            reserved_bytes: 550 << 20,
            source: "2026-11-30, CUDA 13.0 cublaslt 13.1.0 f8 cudnn 9.19.0".to_owned(),
            link_bytes_per_second: 55.49e9,
            copy_seconds: 2.96e-6,
            copy_share: 0.0225,
            memory_bytes_per_second: 4.01e12,
            launch_seconds: 2.42e-6,
            own: Rates {
                gemm: vec![
                    rate(1, 3.4),
                    rate(77, 151.0),
                    rate(256, 424.0),
                    rate(512, 444.0),
                    rate(1024, 568.0),
                    rate(4608, 582.0),
                ],
                narrow_gemm: vec![
                    rate(1, 4.4),
                    rate(77, 298.0),
                    rate(256, 690.0),
                    rate(512, 758.0),
                    rate(1024, 1023.0),
                    rate(4608, 1033.0),
                ],
                attention_flops_per_second: 496e12,
            },
            libraries: Some(Rates {
                gemm: vec![
                    rate(1, 3.4),
                    rate(77, 249.0),
                    rate(256, 579.0),
                    rate(512, 602.0),
                    rate(1024, 676.0),
                    rate(4608, 664.0),
                ],
                narrow_gemm: vec![
                    rate(1, 4.2),
                    rate(77, 369.0),
                    rate(256, 898.0),
                    rate(512, 1208.0),
                    rate(1024, 1379.0),
                    rate(4608, 1367.0),
                ],
                attention_flops_per_second: 607e12,
            }),
            conv_flops_per_second: 519e12,
            tuned: Vec::new(),
        }
    }

    /// The built-in profile that is nearest to a card: today there is one.
    pub fn nearest(_name: &str) -> Self {
        Self::h200()
    }

    /// Folder of profiles: `plimsoll/cards` in the user's folder for configuration.
    ///
    /// # Errors
    /// [`ProfileError::NoFolder`].
    pub fn default_folder() -> Result<PathBuf, ProfileError> {
        let variable =
            |name| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
        let config = variable("XDG_CONFIG_HOME")
            .or_else(|| Some(variable("HOME")?.join(".config")))
            .ok_or(ProfileError::NoFolder)?;
        Ok(config.join("plimsoll/cards"))
    }

    /// File of a card's profile in a folder: its name with all but letters and digits as dashes.
    pub fn file(folder: &Path, name: &str) -> PathBuf {
        let plain = name
            .chars()
            .map(|c| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { '-' });
        let plain: String = plain.take(100).collect();
        folder.join(format!("{plain}.json"))
    }

    /// Writes the profile, whole or not at all; gives its file.
    ///
    /// # Errors
    /// [`ProfileError::File`].
    pub fn save(&self, folder: &Path) -> Result<PathBuf, ProfileError> {
        let path = Self::file(folder, &self.name);
        let beside = path.with_extension(format!("json.{}", std::process::id()));
        let write = || {
            std::fs::create_dir_all(folder)?;
            let mut text = serde_json::to_string_pretty(self).map_err(std::io::Error::other)?;
            text.push('\n');
            let mut file = std::fs::File::create(&beside)?;
            file.write_all(text.as_bytes())?;
            file.sync_all()?;
            std::fs::rename(&beside, &path)
        };
        write().map_err(|cause| {
            // What is left of it, if anything; the error that is told is the first.
            let _ = std::fs::remove_file(&beside);
            ProfileError::File { path: path.clone(), cause }
        })?;
        Ok(path)
    }

    /// Reads the profile of a card, if there is one.
    ///
    /// # Errors
    /// [`ProfileError::File`], and [`ProfileError::Content`] for another version, another card or figures that are
    /// none.
    pub fn load(folder: &Path, name: &str) -> Result<Option<Self>, ProfileError> {
        let path = Self::file(folder, name);
        match std::fs::metadata(&path) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
            _ => Self::parse(&path, Some(name)).map(Some),
        }
    }

    /// Reads the profile of whichever card it is of.
    ///
    /// # Errors
    /// As [`CardProfile::load`], and for a file that is not there.
    pub fn read(path: &Path) -> Result<Self, ProfileError> {
        Self::parse(path, None)
    }

    fn parse(path: &Path, name: Option<&str>) -> Result<Self, ProfileError> {
        let read = || -> std::io::Result<String> {
            let bytes = plimsoll_host::read_regular(path, FILE_BYTES_MOST)?;
            String::from_utf8(bytes).map_err(std::io::Error::other)
        };
        let text = read().map_err(|cause| ProfileError::File { path: path.to_owned(), cause })?;
        let content = |cause| ProfileError::Content {
            path: path.to_owned(),
            name: name.unwrap_or("a card").to_owned(),
            cause,
        };
        let profile: Self =
            serde_json::from_str(&text).map_err(|error| content(error.to_string()))?;
        profile.check(name.unwrap_or(&profile.name)).map_err(content)?;
        Ok(profile)
    }

    fn check(&self, name: &str) -> Result<(), String> {
        if self.version != PROFILE_VERSION {
            return Err(format!("version {}", self.version));
        }
        if self.name != name {
            return Err(format!("it is of {}", self.name));
        }
        let mut figures = vec![
            self.link_bytes_per_second,
            self.copy_seconds,
            self.memory_bytes_per_second,
            self.launch_seconds,
            self.conv_flops_per_second,
        ];
        for rates in std::iter::once(&self.own).chain(&self.libraries) {
            figures.push(rates.attention_flops_per_second);
            if rates.gemm.is_empty() {
                return Err("no products".to_owned());
            }
            for products in [&rates.gemm, &rates.narrow_gemm] {
                figures.extend(products.iter().map(|rate| rate.flops_per_second));
                if !products.is_sorted_by(|a, b| a.rows < b.rows) {
                    return Err("products are not by ascending rows".to_owned());
                }
                if products.iter().any(|rate| rate.rows == 0) {
                    return Err("a product of no rows".to_owned());
                }
            }
        }
        if figures.iter().any(|figure| !(figure.is_finite() && *figure > 0.0)) {
            return Err("a figure that is not above 0".to_owned());
        }
        if !(self.reserved_bytes..VRAM_MOST).contains(&self.vram_bytes) {
            return Err(format!(
                "{} bytes of memory of which {} are taken",
                self.vram_bytes, self.reserved_bytes
            ));
        }
        if self.tuned.len() > TUNED_MOST {
            return Err(format!("{} choices of algorithms", self.tuned.len()));
        }
        if !(0.0..1.0).contains(&self.copy_share) {
            return Err("a copy share outside of 0 to 1".to_owned());
        }
        Ok(())
    }
}

impl Rates {
    /// Operations a second of a product in bf16 with `rows` rows.
    pub fn gemm_flops_per_second(&self, rows: u64) -> f64 {
        interpolated(&self.gemm, rows)
    }

    /// The same of 8-bit operands; the rate in bf16 where that was not measured.
    pub fn narrow_flops_per_second(&self, rows: u64) -> f64 {
        let is_known = !self.narrow_gemm.is_empty();
        interpolated(if is_known { &self.narrow_gemm } else { &self.gemm }, rows)
    }
}

/// Between two rates their logarithms are interpolated over the logarithm of the rows.
fn interpolated(rates: &[RowRate], rows: u64) -> f64 {
    let after = rates.partition_point(|rate| rate.rows < rows);
    let (Some(low), Some(high)) = (rates.get(after.saturating_sub(1)), rates.get(after)) else {
        return rates.last().map_or(f64::NAN, |rate| rate.flops_per_second);
    };
    if low.rows == high.rows {
        return low.flops_per_second;
    }
    #[expect(clippy::cast_precision_loss, reason = "seconds are an estimate")]
    let [low_rows, high_rows, rows] =
        [low.rows, high.rows, rows].map(|rows| (rows.max(1) as f64).ln());
    let share = (rows - low_rows) / (high_rows - low_rows);
    let [slow, fast] = [low, high].map(|rate| rate.flops_per_second.ln());
    (slow + share * (fast - slow)).exp()
}
