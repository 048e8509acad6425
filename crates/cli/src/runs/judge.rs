//! `plimsoll runs judge`: a person's verdict, and a picture measured against a reference run's.

use std::io::BufReader;
use std::path::Path;
use std::time::SystemTime;

use plimsoll_pipeline::Picture;
use plimsoll_record::{
    Comparison, Criteria, Json, Record, RecordError, Store, Verdict, picture, utc,
};
use plimsoll_weights::open_regular;

use crate::failure::Failure;
use crate::runs::args::{CheckArg, FormatArgs, VerdictName};
use crate::runs::show;
use crate::runs::table;
use crate::runs::view::Judged;

/// Most bytes that a PNG may unpack to: 8192 x 8192 pixels.
const PICTURE_BYTES_MAX: usize = 256 << 20;

/// What was said of a run.
pub(crate) struct Said<'a> {
    pub(crate) verdict: Option<VerdictName>,
    pub(crate) note: Option<&'a str>,
    pub(crate) checks: &'a [CheckArg],
    pub(crate) reference: Option<&'a str>,
}

pub(crate) fn run(
    store: &mut Store,
    criteria: &Criteria,
    format: FormatArgs,
    name: &str,
    said: &Said<'_>,
) -> Result<(), Failure> {
    let run_id = store.resolve(name)?;
    if said.verdict.is_none() && said.reference.is_none() {
        let what = "say --verdict pass or fail, or measure it with --reference RUN";
        return Err(Failure::Usage(what.to_owned()));
    }
    let now = utc(SystemTime::now());
    // Measured first: a verdict is not kept where the command fails.
    let comparison = match said.reference {
        None => None,
        Some(reference) => {
            let reference_id = store.resolve(reference)?;
            let (ours, theirs) = (store.get(&run_id)?, store.get(&reference_id)?);
            Some(measure(&ours, &theirs, &now)?)
        }
    };
    if let Some(comparison) = &comparison {
        store.add_comparison(&run_id, comparison)?;
    }
    if let Some(verdict) = said.verdict {
        let checks = said.checks.iter().map(|check| (check.name.clone(), check.is_pass)).collect();
        let verdict = Verdict {
            created: now,
            is_pass: verdict == VerdictName::Pass,
            note: said.note.map(str::to_owned),
            checks: Json(checks),
        };
        store.add_verdict(&run_id, &verdict)?;
    }
    if let Some(name) = &criteria.name {
        store.set_criteria(&run_id, name)?;
    }
    let judged = Judged::named(store, &run_id, criteria)?;
    let mut gates = show::gates(&judged.gates);
    gates.title = format!("Gates of {run_id}");
    table::print(format, &[gates], &judged.json())
}

/// The first pictures of two runs, as far apart as they are.
fn measure(ours: &Record, theirs: &Record, now: &str) -> Result<Comparison, Failure> {
    let (a, b) = (open(ours)?, open(theirs)?);
    if (a.width(), a.height()) != (b.width(), b.height()) {
        let what = format!(
            "pictures of {}x{} and {}x{} cannot be compared: make the reference at the same size",
            a.width(),
            a.height(),
            b.width(),
            b.height(),
        );
        return Err(Failure::Usage(what));
    }
    Ok(Comparison {
        created: now.to_owned(),
        reference_id: theirs.run.run_id.clone(),
        psnr_db: picture::psnr_db(a.rgb(), b.rgb()),
        ssim: picture::ssim(a.rgb(), b.rgb(), a.width() as usize),
    })
}

/// A run's first picture, which has to be the one that was recorded.
fn open(record: &Record) -> Result<Picture, Failure> {
    let id = &record.run.run_id;
    let path = record.quality.pictures.0.first();
    let path = path.ok_or_else(|| Failure::Usage(format!("run {id} has no picture")))?;
    let picture = decode(Path::new(path))?;
    let recorded = record.quality.picture_sha256.0.first();
    if recorded.is_some_and(|recorded| *recorded != picture.sha256()) {
        let faults = vec![format!("is not the picture of run {id} any more")];
        return Err(RecordError::Faults { source_name: path.clone(), faults }.into());
    }
    Ok(picture)
}

fn decode(path: &Path) -> Result<Picture, Failure> {
    let name = path.display().to_string();
    // The path is a record's, which may come from anybody.
    let opened = open_regular(path);
    let (file, _) = opened.map_err(|cause| Failure::Read { path: name.clone(), cause })?;
    let refuse = |fault: String| {
        Failure::Record(RecordError::Faults { source_name: name.clone(), faults: vec![fault] })
    };
    let limits = png::Limits { bytes: PICTURE_BYTES_MAX };
    let decoder = png::Decoder::new_with_limits(BufReader::new(file), limits);
    let mut reader = decoder.read_info().map_err(|error| refuse(error.to_string()))?;
    let (color, depth) = reader.output_color_type();
    if (color, depth) != (png::ColorType::Rgb, png::BitDepth::Eight) {
        return Err(refuse(format!("is {color:?} of {depth:?} bits, expected RGB of 8")));
    }
    let size = reader.output_buffer_size().filter(|size| *size <= PICTURE_BYTES_MAX);
    let size =
        size.ok_or_else(|| refuse(format!("unpacks to more than {PICTURE_BYTES_MAX} bytes")))?;
    let mut rgb = vec![0; size];
    let frame = reader.next_frame(&mut rgb).map_err(|error| refuse(error.to_string()))?;
    rgb.truncate(frame.buffer_size());
    Picture::from_rgb(rgb, frame.width, frame.height).map_err(|error| refuse(error.to_string()))
}
