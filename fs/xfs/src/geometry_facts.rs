//! The geometry in words, for `ivers info`.

use crate::layout::superblock::Superblock;

/// Names and values of the sizes and places that the superblock states, beside the usual ones.
pub(crate) fn geometry_facts(sb: &Superblock) -> Vec<(String, String)> {
    let geometry = &sb.geometry;
    let mut facts = Vec::new();
    let mut fact = |name: &str, value: String| facts.push((name.to_owned(), value));
    let last = sb.ag_len(sb.ag_count - 1);
    if last != sb.ag_blocks {
        fact("last group", format!("{last} blocks"));
    }
    let log_block = sb.log_start.0 & ((1 << sb.ag_block_bits) - 1);
    fact("log place", format!("group {}, block {log_block}", sb.log_start.0 >> sb.ag_block_bits));
    fact(
        "space for inodes",
        match sb.inode_max_percent {
            0 => "all blocks".to_owned(),
            percent => format!("at most {percent} % of the blocks"),
        },
    );
    let parts = match geometry.sparse_alignment {
        0 => String::new(),
        blocks => format!(", parts of them at multiples of {blocks}"),
    };
    if geometry.inode_alignment > 0 {
        let blocks = geometry.inode_alignment;
        fact("inode chunks", format!("start at multiples of {blocks} blocks{parts}"));
    }
    if geometry.stripe_unit > 0 {
        let (unit, width) = (geometry.stripe_unit, geometry.stripe_width);
        fact("stripe", format!("unit of {unit} blocks, width of {width} blocks"));
    }
    facts
}
