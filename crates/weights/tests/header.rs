//! The header reader against damaged and hostile files.
//!
//! One table holds a case for each way in which a header can lie; then every truncation and every
//! flipped bit of a small header, and headers made to exhaust memory.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use plimsoll_weights::{HEADER_BYTES_MAX, Header, HeaderError, open_transformer_file};
use support::raw_file;

/// What the reader says of a file with this header and this many bytes of data.
fn check(header: &str, data_bytes: usize, expect: &str) {
    let found = match Header::of_bytes(&raw_file(header, data_bytes)) {
        Ok(header) => format!("{} tensors", header.tensors.len()),
        Err(error) => error.to_string(),
    };
    assert_eq!(found, expect, "{header}");
}

/// One bf16 tensor of the given text fields.
fn tensor(name: &str, dtype: &str, shape: &str, begin: &str, end: &str) -> String {
    format!(r#""{name}":{{"dtype":"{dtype}","shape":{shape},"data_offsets":[{begin},{end}]}}"#)
}

#[test]
fn sound_headers_are_read() {
    let a = tensor("a", "BF16", "[2,3]", "0", "12");
    let b = tensor("b", "F32", "[]", "12", "16");
    check(&format!("{{{a},{b}}}"), 16, "2 tensors");
    // Any order in the text, padding, empty tensors, no tensors, metadata.
    check(&format!("{{{b},{a}}}   "), 16, "2 tensors");
    let empty = tensor("e", "F32", "[0,7]", "12", "12");
    check(&format!("{{{a},{empty},{b}}}"), 16, "3 tensors");
    check("{}", 0, "0 tensors");
    check(&format!(r#"{{"__metadata__":{{"format":"pt"}},{a}}}"#), 12, "1 tensors");
    let packed = tensor("p", "F4", "[2,3]", "0", "3");
    check(&format!("{{{packed}}}"), 3, "1 tensors");
    let six = tensor("p", "F6_E2M3", "[4]", "0", "3");
    check(&format!("{{{six}}}"), 3, "1 tensors");

    let header = Header::of_bytes(&raw_file(&format!("{{{b},{a}}}"), 16)).unwrap();
    let offsets: Vec<_> =
        header.tensors.iter().map(|t| (t.name.as_str(), t.offset - header.data_start)).collect();
    assert_eq!(offsets, [("a", 0), ("b", 12)]);
}

#[test]
fn each_lie_is_named() {
    let a = tensor("a", "BF16", "[2,3]", "0", "12");
    let with = |rest: &str| format!("{{{a},{rest}}}");
    // Offsets.
    check(
        &with(&tensor("b", "U8", "[4]", "11", "15")),
        15,
        "tensor `b` begins at 11, inside the tensor before it, which ends at 12",
    );
    check(
        &with(&tensor("b", "BF16", "[2,3]", "0", "12")),
        12,
        "tensor `b` begins at 0, inside the tensor before it, which ends at 12",
    );
    check(
        &with(&tensor("b", "U8", "[4]", "13", "17")),
        17,
        "tensor `b` begins at 13, but the tensor before it ends at 12: a hole",
    );
    check(
        &format!("{{{}}}", tensor("a", "U8", "[4]", "1", "5")),
        5,
        "tensor `a` begins at 1, but the tensor before it ends at 0: a hole",
    );
    check(
        &with(&tensor("b", "U8", "[4]", "16", "12")),
        16,
        "tensor `b` has reversed offsets: begin 16, end 12",
    );
    check(
        &with(&tensor("b", "U8", "[4]", "12", "17")),
        17,
        "tensor `b` of shape [4] and dtype U8 takes 4 bytes but its offsets span 5",
    );
    let huge = 1u64 << 60;
    check(
        &with(&tensor("b", "U8", &format!("[{huge}]"), "12", &(huge + 12).to_string())),
        12,
        "the file has 167 bytes but its header describes 1152921504606847143: cut short, or still being downloaded",
    );
    // Lengths.
    check(
        &format!("{{{a}}}"),
        11,
        "the file has 77 bytes but its header describes 78: cut short, or still being downloaded",
    );
    check(
        &format!("{{{a}}}"),
        13,
        "the file has 79 bytes but its header describes only 78: trailing bytes",
    );
    check("{}", 1, "the file has 11 bytes but its header describes only 10: trailing bytes");
    // Shapes and types.
    check(
        &with(&tensor("b", "BF15", "[4]", "12", "20")),
        20,
        "tensor `b` has the unknown dtype `BF15`",
    );
    check(
        &with(&tensor("b", "bf16", "[4]", "12", "20")),
        20,
        "tensor `b` has the unknown dtype `bf16`",
    );
    check(
        &with(&tensor("b", "F4", "[3]", "12", "14")),
        14,
        "tensor `b` of shape [3] and dtype F4 does not fill whole bytes",
    );
    check(
        &with(&tensor("b", "F64", "[4294967296,4294967296]", "12", "12")),
        12,
        "tensor `b` of shape [4294967296, 4294967296] and dtype F64 overflows 64 bits",
    );
    check(
        &with(&tensor("b", "U8", "[4611686018427387904,4611686018427387904,0]", "12", "12")),
        12,
        "tensor `b` of shape [4611686018427387904, 4611686018427387904, 0] and dtype U8 overflows 64 bits",
    );
    check(
        &with(&tensor("b", "U8", "[1,1,1,1,1,1,1,1,1]", "12", "13")),
        13,
        "tensor `b` has 9 axes, over the cap of 8",
    );
    // Names.
    check(&with(&tensor("a", "U8", "[4]", "12", "16")), 16, "the header names `a` twice");
    check(&with(&tensor("\\u0061", "U8", "[4]", "12", "16")), 16, "the header names `a` twice");
    check(
        &format!(r#"{{"__metadata__":{{}},"__metadata__":{{}},{a}}}"#),
        12,
        "the header names `__metadata__` twice",
    );
    check(
        &format!(r#"{{"__metadata__":{{"k":"1","k":"2"}},{a}}}"#),
        12,
        "the header names `k` twice",
    );
    check(
        &with(&tensor("x\\ny\\u001b[31m", "?", "[4]", "12", "16")),
        16,
        "tensor `x\\ny\\u{1b}[31m` has the unknown dtype `?`",
    );
}

/// The reason that follows the common words about a header's form.
fn check_syntax(header: &str, expect: &str) {
    let error = Header::of_bytes(&raw_file(header, 12)).unwrap_err();
    let HeaderError::Syntax { reason } = &error else {
        panic!("{header}: {error}");
    };
    assert!(reason.contains(expect), "{header}: {reason}");
    let line = error.to_string();
    assert!(line.starts_with("the header is not that of a safetensors file: "), "{line}");
    assert!(line.len() < 400 && !line.contains('\n'), "{line}");
}

#[test]
fn what_is_no_header_is_refused() {
    let a = tensor("a", "BF16", "[2,3]", "0", "12");
    check_syntax("", "does not begin with `{`");
    check_syntax("[]", "does not begin with `{`");
    check_syntax(" {}", "does not begin with `{`");
    check_syntax("{", "EOF");
    check_syntax("{}{}", "trailing characters");
    check_syntax(&format!("{{{a},}}"), "trailing comma");
    check_syntax(r#"{"a":null}"#, "invalid type: null");
    check_syntax(r#"{"a":{"dtype":"U8","shape":[12]}}"#, "missing field `data_offsets`");
    check_syntax(
        &a.replace(r#""dtype""#, r#""dtype":"U8","dtype""#).pipe(|t| format!("{{{t}}}")),
        "duplicate field `dtype`",
    );
    check_syntax(
        &a.replace(r#""dtype""#, r#""extra":1,"dtype""#).pipe(|t| format!("{{{t}}}")),
        "unknown field `extra`",
    );
    for (begin, end) in [
        ("-1", "12"),
        ("0", "12.0"),
        ("0", "1e1"),
        ("0", "18446744073709551616"),
        ("0", "\"12\""),
        ("0", "12,13"),
        ("0", "null"),
    ] {
        let text = format!("{{{}}}", tensor("a", "BF16", "[2,3]", begin, end));
        check_syntax(&text, "");
    }
    for shape in ["[-2,3]", "[2.0,3]", "6", "[[6]]", "null", "{}", "[18446744073709551616]"] {
        check_syntax(&format!("{{{}}}", tensor("a", "BF16", shape, "0", "12")), "");
    }
    check_syntax(&format!(r#"{{"__metadata__":{{"k":1}},{a}}}"#), "expected a string");
    check_syntax(&format!(r#"{{"__metadata__":"k",{a}}}"#), "expected an object");
    check_syntax(&format!("{{\"a\":{}", "[".repeat(100_000)), "");
    check_syntax(&format!("{{\"a\":{}", "{\"b\":".repeat(100_000)), "");
    check_syntax(&format!("{{\"{}\":1}}", "x".repeat(100_000)), "");
    check_syntax(&format!("{{\"a\":\"{}\"}}", "x".repeat(100_000)), "");
}

trait Pipe: Sized {
    fn pipe<T>(self, function: impl FnOnce(Self) -> T) -> T {
        function(self)
    }
}
impl Pipe for String {}

#[test]
fn what_is_not_utf8_is_refused() {
    let mut file = raw_file(&format!("{{{}}}", tensor("abc", "BF16", "[2,3]", "0", "12")), 12);
    file[11] = 0xff;
    let error = Header::of_bytes(&file).unwrap_err();
    assert_eq!(error, HeaderError::NotUtf8 { offset: 3 });
}

#[test]
fn the_length_of_the_header_is_checked_before_anything() {
    for (claimed, expect) in [
        (HEADER_BYTES_MAX + 1, "over the cap of 16777216"),
        (u64::MAX, "over the cap of 16777216"),
        (HEADER_BYTES_MAX, "the header ends at byte 16777224 but the file has 10 bytes"),
        (3, "the header ends at byte 11 but the file has 10 bytes"),
    ] {
        let mut file = claimed.to_le_bytes().to_vec();
        file.extend(b"{}");
        let error = Header::of_bytes(&file).unwrap_err().to_string();
        assert!(error.contains(expect), "{error}");
    }
}

/// A small file with everything a header can hold.
fn small_file() -> Vec<u8> {
    let tensors = [
        tensor("double_blocks.0.img_attn.qkv.weight", "BF16", "[6,2]", "0", "24"),
        tensor("s", "F32", "[]", "24", "28"),
        tensor("q", "F4", "[2,2]", "28", "30"),
        tensor("e", "I64", "[0,3]", "30", "30"),
    ];
    raw_file(&format!(r#"{{"__metadata__":{{"format":"pt"}},{}}}  "#, tensors.join(",")), 30)
}

/// Holds what every accepted header promises.
fn check_promises(header: &Header, file_bytes: usize) {
    let mut end = header.data_start;
    for tensor in &header.tensors {
        assert_eq!(tensor.offset, end, "{tensor:?}");
        let elements: u64 = tensor.shape.iter().product();
        assert_eq!(tensor.dtype.bytes(elements), Some(tensor.bytes), "{tensor:?}");
        end += tensor.bytes;
    }
    assert_eq!(end, file_bytes as u64);
}

#[test]
fn a_file_cut_at_any_byte_is_refused() {
    let file = small_file();
    check_promises(&Header::of_bytes(&file).unwrap(), file.len());
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("cut.safetensors");
    for length in 0..file.len() {
        let error = Header::of_bytes(&file[..length]).unwrap_err();
        let is_right = match length {
            0..8 => matches!(error, HeaderError::TooShort { .. }),
            _ if length < file.len() - 30 => matches!(error, HeaderError::PastEnd { .. }),
            _ => matches!(error, HeaderError::FileShort { .. }),
        };
        assert!(is_right, "{length}: {error}");
        // The same through the reader of files on disk, which has another way to the bytes.
        std::fs::write(&path, &file[..length]).unwrap();
        let on_disk = open_transformer_file(&path).unwrap_err().to_string();
        assert_eq!(on_disk, format!("{}: {error}", path.display()));
    }
}

#[test]
fn a_flipped_bit_anywhere_gives_a_header_or_a_typed_error() {
    let file = small_file();
    let (mut accepted, mut refused) = (0, 0);
    for bit in 0..(file.len() - 30) * 8 {
        let mut damaged = file.clone();
        damaged[bit / 8] ^= 1 << (bit % 8);
        match Header::of_bytes(&damaged) {
            Ok(header) => {
                check_promises(&header, damaged.len());
                accepted += 1;
            }
            Err(error) => {
                let line = error.to_string();
                assert!(!line.contains('\n') && line.len() < 1000, "{line}");
                refused += 1;
            }
        }
    }
    // A flip inside a name or the metadata changes only text; most others are caught.
    assert!(accepted > 100 && refused > 1000, "{accepted} accepted, {refused} refused");
}

/// Headers at the cap, made to cost much more than their length.
fn bombs() -> Vec<(&'static str, String)> {
    let cap = HEADER_BYTES_MAX as usize - 200;
    let fill = |unit: &str| unit.repeat(cap / unit.len());
    let many = |unit: &dyn Fn(usize) -> String| {
        let mut text = String::new();
        let mut index = 0;
        while text.len() + 100 < cap {
            text.push_str(&unit(index));
            index += 1;
        }
        text
    };
    let empty = |i: usize| tensor(&format!("{i}"), "U8", "[0]", "0", "0") + ",";
    let last = tensor("z", "U8", "[0]", "0", "0");
    vec![
        ("tensors", format!("{{{}{last}}}", many(&empty))),
        ("axes", format!("{{{}}}", tensor("a", "U8", &format!("[{}1]", fill("1,")), "0", "1"))),
        (
            "metadata",
            format!("{{\"__metadata__\":{{{}\"\":\"\"}}}}", many(&|i| format!("\"{i}\":\"\","))),
        ),
        ("same metadata", format!("{{\"__metadata__\":{{{}\"\":\"\"}}}}", fill("\"\":\"\","))),
        ("dtype", format!("{{{}}}", tensor("a", &fill("x"), "[0]", "0", "0"))),
        ("name", format!("{{{}}}", tensor(&fill("x"), "?", "[0]", "0", "0"))),
        ("escapes", format!("{{{}}}", tensor(&fill("\\u0001"), "?", "[0]", "0", "0"))),
        ("depth", format!("{{\"a\":{}", fill("["))),
        ("spaces", format!("{{{}", fill(" "))),
    ]
}

/// Greatest resident memory of this process so far; Linux only.
#[cfg(target_os = "linux")]
fn peak_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmHWM:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() * 1024
}

/// Runs alone in a child process, where nobody else's memory disturbs the measure.
#[test]
#[cfg(target_os = "linux")]
fn memory_child() {
    let Ok(path) = std::env::var("PLIMSOLL_TEST_BOMB") else {
        return;
    };
    let before = peak_bytes();
    let refused = open_transformer_file(&path).map(|_| ()).unwrap_err().to_string();
    let grown = peak_bytes() - before;
    assert!(refused.len() < 1000 && !refused.contains('\n'), "a long message");
    eprintln!("grown {grown} {refused}");
}

#[test]
#[cfg(target_os = "linux")]
fn a_header_made_to_exhaust_memory_takes_a_small_multiple_of_the_cap() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("bomb.safetensors");
    let mut grown_max = 0;
    for (name, header) in bombs() {
        assert!(header.len() as u64 <= HEADER_BYTES_MAX, "{name}");
        std::fs::write(&path, raw_file(&header, 0)).unwrap();
        let output = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "memory_child", "--nocapture"])
            .env("PLIMSOLL_TEST_BOMB", &path)
            .output()
            .unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{name}: {stderr}");
        let line = stderr.lines().find(|line| line.starts_with("grown")).unwrap();
        println!("{name}: {line}");
        let grown: u64 = line.split(' ').nth(1).unwrap().parse().unwrap();
        assert!(grown <= 3 * HEADER_BYTES_MAX, "{name}: {line}");
        grown_max = grown_max.max(grown);
    }
    // The measure works: the header itself is always read.
    assert!(grown_max > HEADER_BYTES_MAX / 2, "{grown_max}");
}
