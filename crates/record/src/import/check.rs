//! What is contradictory in a record of other software, why, and what is right.
//!
//! # Source
//! The project's first document, "set sequential CPU offload once, on the pipeline as assembled".

use crate::record::{Finding, Record};
use crate::words::FindingCode;

/// The order that everything here comes down to.
const ORDER: &str =
    "load, attach everything, clear a device map, then one offload call, and no move to the card";

/// Offload modes by the names that they and their calls go by.
const MODES: &[(&str, &[&str])] = &[
    ("sequential", &["sequential"]),
    (
        "model",
        &[
            "enable_model_cpu_offload",
            "model cpu offload",
            "model_cpu_offload",
            "model offload",
            "model",
        ],
    ),
    ("group", &["group"]),
];

/// Calls that attach a component, as far as their names tell.
const ATTACH: &[&str] =
    &["load_lora", "load_ip_adapter", "set_adapters", "fuse_lora", "controlnet", "attach"];

/// Names of quantizations, which are no dtypes.
const QUANTIZATIONS: &[&str] = &[
    "nf4",
    "fp4",
    "int4",
    "int8",
    "4bit",
    "4-bit",
    "8bit",
    "8-bit",
    "gguf",
    "gptq",
    "awq",
    "bnb",
    "bitsandbytes",
    "q2_",
    "q3_",
    "q4_",
    "q5_",
    "q6_",
    "q8_",
];

/// Names of dtypes, which are no quantizations.
const DTYPES: &[&str] = &["bf16", "bfloat16", "fp16", "float16", "half", "fp32", "float32"];

/// Finds contradictions; moves `empty_cache` out of the offload fields into its own. `calls` are the calls of
/// the program in their order, where they were recorded.
pub fn check(record: &mut Record, calls: &[String]) -> Vec<Finding> {
    let mut found = Vec::new();
    let mut say = |code, text: String| found.push(Finding { code, text });
    if let Some(text) = keep_caches_apart(record) {
        say(FindingCode::EmptyCacheAsOffload, text);
    }
    let conditions = &record.conditions;
    let mode = conditions.offload_mode.as_deref().unwrap_or_default().to_ascii_lowercase();
    let api = conditions.offload_api.as_deref().unwrap_or_default().to_ascii_lowercase();
    let called =
        calls.iter().filter(|call| is_offload(call)).cloned().collect::<Vec<_>>().join(" ");
    let called = called.to_ascii_lowercase();
    let modes: Vec<&str> = MODES
        .iter()
        .filter(|(_, names)| {
            names
                .iter()
                .any(|name| mode.contains(name) || api.contains(name) || called.contains(name))
        })
        .map(|(name, _)| *name)
        .collect();
    let calls_move = calls.iter().any(|call| is_move(call));
    let is_moved = conditions.pipeline_moved_to_cuda == Some(true) || calls_move;
    if modes.contains(&"sequential") && is_moved {
        say(
            FindingCode::MovedToCuda,
            format!(
                "sequential offload with pipeline_moved_to_cuda: true: the whole pipeline takes the memory that \
                 the offload is to save; right: {ORDER}"
            ),
        );
    }
    if modes.len() > 1 {
        say(
            FindingCode::TwoOffloadModes,
            format!(
                "offload modes {} at once: each installs its own hooks, and what runs is neither; right: one of \
                 them, model for speed or sequential for memory",
                modes.join(" and "),
            ),
        );
    }
    if let Some(map) = conditions.device_map.as_deref().filter(|_| !modes.is_empty()) {
        say(
            FindingCode::DeviceMapBesideOffload,
            format!(
                "device_map {map:?} beside {} offload: the map has placed the parts already; right: \
                 reset_device_map() first, then the offload call",
                modes.join(" and "),
            ),
        );
    }
    let late = attached_late(&conditions.attached_components.0, calls);
    if !late.is_empty() {
        say(
            FindingCode::AttachedAfterOffload,
            format!(
                "{} attached after the offload call: its hooks do not cover them; right: {ORDER}",
                late.join(", "),
            ),
        );
    }
    let names = |value: &Option<String>, list: &[&str]| {
        let text = value.clone().unwrap_or_default();
        let lower = text.to_ascii_lowercase();
        list.iter().any(|name| lower.contains(name)).then_some(text)
    };
    if let Some(dtype) = names(&conditions.dtype, QUANTIZATIONS) {
        say(
            FindingCode::QuantizationAsDtype,
            format!(
                "dtype {dtype:?} is a quantization: weights converted to fewer bits; right: quantization: {dtype}, \
                 and as dtype what is computed in, such as bfloat16"
            ),
        );
    }
    if let Some(name) = names(&conditions.quantization, DTYPES) {
        say(
            FindingCode::DtypeAsQuantization,
            format!(
                "quantization {name:?} is a dtype: the same weights in a shorter format; right: dtype: {name}, \
                 quantization: none"
            ),
        );
    }
    found
}

/// `torch.cuda.empty_cache()` frees what PyTorch does not use; no weight moves by it.
fn keep_caches_apart(record: &mut Record) -> Option<String> {
    let conditions = &mut record.conditions;
    let mut moved = Vec::new();
    for field in [&mut conditions.offload_mode, &mut conditions.offload_api] {
        let Some(text) = field.clone().filter(|text| text.contains("empty_cache")) else {
            continue;
        };
        let (caches, rest): (Vec<&str>, Vec<&str>) = text
            .split([',', ';', '+'])
            .map(str::trim)
            .partition(|part| part.contains("empty_cache"));
        moved.extend(caches.into_iter().map(str::to_owned));
        *field = Some(rest.join(", ")).filter(|rest| !rest.is_empty());
    }
    if moved.is_empty() {
        return None;
    }
    moved.dedup();
    let text = moved.join(", ");
    conditions.empty_cache.get_or_insert_with(|| text.clone());
    if conditions.offload_mode.is_none() {
        conditions.offload_mode = Some("none".to_owned());
    }
    Some(format!(
        "{text} is no offload: it frees what the allocator keeps unused and moves no weight; it is kept apart, as \
         empty_cache"
    ))
}

fn is_offload(call: &str) -> bool {
    call.contains("offload") && !call.contains("empty_cache")
}

/// `.to("cuda")`, whatever its quotes.
fn is_move(call: &str) -> bool {
    let plain: String = call.chars().filter(|letter| !"\"' ".contains(*letter)).collect();
    plain.contains("to(cuda") || plain.contains("to(device=cuda") || plain.ends_with(".cuda()")
}

/// Components that say so themselves, and those whose call comes after an offload call.
fn attached_late(components: &[String], calls: &[String]) -> Vec<String> {
    let says_so = |text: &&String| {
        let lower = text.to_ascii_lowercase().replace(['_', '-'], " ");
        lower.contains("after offload") || lower.contains("after the offload")
    };
    let mut late: Vec<String> = components.iter().filter(says_so).cloned().collect();
    if let Some(at) = calls.iter().position(|call| is_offload(call)) {
        let attaches = |call: &&String| {
            let lower = call.to_ascii_lowercase();
            ATTACH.iter().any(|name| lower.contains(name))
        };
        late.extend(calls[at + 1..].iter().filter(attaches).cloned());
    }
    late
}
