//! Tells by the first bytes what a file is, whatever its name says.
//!
//! People rename checkpoints, and a download that failed often left a web page or a pointer under
//! the right name; a reader that goes by the extension then reports nonsense, or worse, runs a
//! pickle. Nothing here decodes anything.

use crate::layout::Layout;

/// Bytes of the head of a file that [`sniff`] wants to see.
pub(crate) const SNIFF_BYTES: usize = 512;

/// The foreign container that `head` (the first [`SNIFF_BYTES`] of the file, or all of it) begins;
/// `None` where it may be a safetensors file.
pub(crate) fn sniff(head: &[u8]) -> Option<Layout> {
    if looks_like_safetensors(head) {
        return None;
    }
    let magic: [(&[u8], Layout); 13] = [
        (b"GGUF", Layout::Gguf),
        (b"\x1f\x8b", Layout::Gzip),
        (b"\x93NUMPY", Layout::Numpy),
        (b"\x89HDF\r\n\x1a\n", Layout::Hdf5),
        (b"\x89PNG\r\n\x1a\n", Layout::Picture),
        (b"\xff\xd8\xff", Layout::Picture),
        (b"version https://git-lfs.github.com/spec/", Layout::LfsPointer),
        (b"version https://hawser.github.com/spec/", Layout::LfsPointer),
        (b"/annex/objects/", Layout::AnnexPointer),
        (b"lmgg", Layout::OldGgml),
        (b"tjgg", Layout::OldGgml),
        (b"fmgg", Layout::OldGgml),
        (b"FUGG", Layout::Gguf),
    ];
    if let Some(&(_, layout)) = magic.iter().find(|(prefix, _)| head.starts_with(prefix)) {
        return Some(layout);
    }
    if head.starts_with(b"PK\x03\x04") {
        // torch.save writes `<archive>/data.pkl` as the first member.
        let pickled = head.windows(8).any(|window| window == b"data.pkl");
        return Some(if pickled { Layout::Pickle } else { Layout::Zip });
    }
    // Protocols 2 to 5 begin with PROTO; protocol 0 and 1 pickles of torch are a legacy tar.
    if let [0x80, 2..=5, ..] = head {
        return Some(Layout::Pickle);
    }
    if head.get(257..262) == Some(b"ustar") {
        return Some(Layout::Tar);
    }
    sniff_text(head)
}

/// A plausible header length followed by the brace that every header begins with.
///
/// Needed before the other magics: a header of 640 bytes makes a file begin with `80 02`, as a
/// pickle does.
fn looks_like_safetensors(head: &[u8]) -> bool {
    let Some(length) = head.first_chunk::<8>() else {
        return false;
    };
    u64::from_le_bytes(*length) <= crate::header::HEADER_BYTES_MAX && head.get(8) == Some(&b'{')
}

/// Web pages and other text that a failed download leaves.
fn sniff_text(head: &[u8]) -> Option<Layout> {
    let head = head.strip_prefix(b"\xef\xbb\xbf").unwrap_or(head);
    let text = head.trim_ascii_start();
    let starts =
        |tag: &[u8]| text.get(..tag.len()).is_some_and(|begin| begin.eq_ignore_ascii_case(tag));
    if [&b"<!doctype"[..], b"<html", b"<head", b"<?xml", b"<error"].iter().any(|tag| starts(tag)) {
        return Some(Layout::WebPage);
    }
    // The head may end inside a character.
    let valid = match std::str::from_utf8(head) {
        Ok(text) => text,
        Err(e) if e.error_len().is_none() => {
            std::str::from_utf8(&head[..e.valid_up_to()]).unwrap_or_default()
        }
        Err(_) => return None,
    };
    let is_plain = |c: char| !c.is_control() || matches!(c, '\t' | '\n' | '\r');
    let is_text = valid.len() >= 8 && valid.chars().all(is_plain);
    is_text.then_some(Layout::Text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(head: &[u8], expect: Option<Layout>) {
        assert_eq!(sniff(head), expect, "{:?}", String::from_utf8_lossy(head));
    }

    #[test]
    fn containers_are_told_by_content() {
        check(b"GGUF\x03\0\0\0", Some(Layout::Gguf));
        check(b"PK\x03\x04\x14\0\0\0\0\0archive/data.pkl", Some(Layout::Pickle));
        check(b"PK\x03\x04\x14\0\0\0\0\0model/weights.npy", Some(Layout::Zip));
        check(b"\x80\x02\x8a\x0al\xfc\x9cF\xf9 j\xa8P\x19.", Some(Layout::Pickle));
        check(b"\x80\x04\x95\0\0\0\0\0\0\0\0}", Some(Layout::Pickle));
        check(b"version https://git-lfs.github.com/spec/v1\n", Some(Layout::LfsPointer));
        check(b"\xef\xbb\xbf \n<!DOCTYPE html><html>", Some(Layout::WebPage));
        check(b"<Error><Code>AccessDenied</Code>", Some(Layout::WebPage));
        check(b"{\"error\":\"Repository not found\"}", Some(Layout::Text));
        check(b"Access to this model is restricted.", Some(Layout::Text));
        check(b"\x1f\x8b\x08", Some(Layout::Gzip));
        check(b"", None);
        check(b"\0\0\0", None);
    }

    #[test]
    fn a_header_length_that_looks_like_a_pickle_is_a_safetensors_file() {
        for length in [0x0280u64, 0x0380, 0x0480, 0x0580, 0x1_8b1f, 0x0067_6d6c] {
            let mut head = length.to_le_bytes().to_vec();
            head.extend(b"{\"a\":");
            check(&head, None);
        }
        // ... but not where no brace follows.
        check(&[0x80, 2, 0, 0, 0, 0, 0, 0, b'}', b'.'], Some(Layout::Pickle));
    }
}
