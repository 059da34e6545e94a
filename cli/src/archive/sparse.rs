//! Maps of sparse files: which ranges of a file an archive contains. What is between them reads as zeros.

/// A range of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Run {
    /// The byte offset in the file.
    pub offset: u64,
    /// The length in bytes.
    pub len: u64,
}

/// Most ranges of one file. They are in memory, so a hostile archive or image must not choose their number.
pub const RUNS_MAX: usize = 1 << 20;

/// Checks a map: ranges in ascending order that do not overlap and lie in the file. Returns the sum of their
/// lengths. Ranges without bytes, which mark the end of a file, are allowed.
pub fn check(runs: &[Run], size: u64) -> Result<u64, &'static str> {
    let mut end = 0;
    let mut sum = 0;
    for run in runs {
        if run.offset < end {
            return Err("the ranges of a sparse file overlap");
        }
        let run_end = run.offset.checked_add(run.len).filter(|&end| end <= size);
        end = run_end.ok_or("a range of a sparse file is past its end")?;
        sum += run.len;
    }
    Ok(sum)
}

/// Encodes a map as version 1.0 stores it before the data: a count, then offset and length of each range,
/// each number in decimal with a newline, filled up to whole blocks.
pub fn encode(runs: &[Run]) -> Vec<u8> {
    let mut text = format!("{}\n", runs.len());
    for run in runs {
        text += &format!("{}\n{}\n", run.offset, run.len);
    }
    let mut bytes = text.into_bytes();
    bytes.resize(bytes.len().next_multiple_of(512), 0);
    bytes
}
