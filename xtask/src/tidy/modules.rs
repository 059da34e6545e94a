//! The order of the modules of a crate, in each folder: each uses lower ones only, so there is no cycle.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use super::{files, root};

/// Returns the first names of the paths below the module `root` (`crate::` for the crate) that `text` uses.
/// `depth` is the number of `super` from the module of the text to `root`. Comments and unit tests do not
/// count.
fn root_names(text: &str, root: &str, depth: usize) -> Vec<String> {
    let code = text.split("\nmod tests {").next().unwrap_or_default();
    let code = code.split("\npub(crate) mod tests {").next().unwrap_or_default();
    let code: Vec<&str> =
        code.lines().map(|line| line.split_once("//").map_or(line, |(code, _)| code)).collect();
    let code = code.join("\n");
    let from_super = "super::".repeat(depth);
    let starts = [root, &from_super].map(|prefix| {
        let at = code.match_indices(prefix);
        at.filter(|(at, _)| !code[..*at].ends_with(|c: char| c.is_alphanumeric() || "_:$".contains(c)))
            .map(|(at, found)| at + found.len())
            .collect::<Vec<_>>()
    });
    starts
        .concat()
        .into_iter()
        .flat_map(|at| first_names(&code[at..]))
        .filter(|name| name != "super")
        .collect()
}

/// Returns the first names of a path: `a` of `a::b`; `a` and `c` of `{a::b, c::{d, e}}`.
fn first_names(path: &str) -> Vec<String> {
    let name = |text: &str| text.trim().chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect();
    let Some(group) = path.strip_prefix('{') else { return vec![name(path)] };
    let (mut depth, mut names, mut start) = (0, Vec::new(), 0);
    for (at, c) in group.char_indices() {
        match c {
            '{' => depth += 1,
            ',' | '}' if depth == 0 => {
                names.push(name(&group[start..at]));
                start = at + 1;
                if c == '}' {
                    break;
                }
            }
            '}' => depth -= 1,
            _ => {}
        }
    }
    names.retain(|name| !name.is_empty());
    names
}

/// A file of a folder: its path, the module of the folder that it belongs to, and the names in the folder
/// that it uses.
type Uses = (PathBuf, String, Vec<String>);

/// The uses of all files in `folder`, a path below `source`, the `src` folder of a crate. Tests do not count,
/// nor does the folder's own file, which may use everything in it.
fn uses_in(source: &Path, folder: &str) -> Vec<Uses> {
    let root = format!("crate/{folder}").trim_end_matches('/').replace('/', "::") + "::";
    let source = &source.join(folder);
    let mut sources = Vec::new();
    files(source, ".rs", &mut sources);
    assert!(!sources.is_empty(), "{}: no source", source.display());
    let mut uses = Vec::new();
    for file in sources {
        let inside = file.strip_prefix(source).expect("the file is in the folder").with_extension("");
        let mut path: Vec<_> = inside.components().map(|part| part.as_os_str().to_string_lossy()).collect();
        if path.last().is_some_and(|last| last == "mod") {
            path.pop();
        }
        if path.is_empty() || path == ["lib"] || path == ["main"] || path.iter().any(|part| part == "tests") {
            continue;
        }
        let names = root_names(&fs::read_to_string(&file).unwrap(), &root, path.len());
        uses.push((file, path[0].to_string(), names));
    }
    uses
}

/// What is wrong with the modules in `folder`, a path below `source`, the `src` folder of a crate: a module
/// that uses one above it, or one that `from_low_to_high` does not list.
fn violations(source: &Path, folder: &str, from_low_to_high: &str) -> Vec<String> {
    let order: Vec<_> = from_low_to_high.split_whitespace().collect();
    let height = |name: &str| order.iter().position(|module| *module == name);
    let mut found = Vec::new();
    for (file, module, names) in uses_in(source, folder) {
        let Some(own) = height(&module) else {
            found.push(format!("{}: module {module} has no place in the order", file.display()));
            continue;
        };
        for name in names {
            match height(&name) {
                Some(other) if other <= own => {}
                Some(_) => found.push(format!("{}: {module} uses {name}, which is above it", file.display())),
                None => found.push(format!("{}: {name} is no module in the order", file.display())),
            }
        }
    }
    found
}

/// Returns whether the modules of a folder can be ordered: they use each other without a cycle, and nothing
/// of the folder's own file.
fn has_order(uses: &[Uses]) -> bool {
    let mut left: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for (_, module, names) in uses {
        left.entry(module).or_default().extend(names.iter().map(String::as_str).filter(|it| it != module));
    }
    while !left.is_empty() {
        let above = |used: &BTreeSet<&str>| used.iter().any(|it| left.contains_key(it));
        let Some(lowest) = left.iter().find(|(_, used)| !above(used)).map(|(module, _)| *module) else {
            return false;
        };
        left.remove(lowest);
    }
    let modules: BTreeSet<&str> = uses.iter().map(|(_, module, _)| module.as_str()).collect();
    uses.iter().flat_map(|(_, _, names)| names).all(|name| modules.contains(name.as_str()))
}

/// The folders below `folder` that contain modules, without those of tests.
fn folders_with_modules(source: &Path, folder: &str, found: &mut Vec<String>) {
    let mut has_modules = false;
    for entry in fs::read_dir(source.join(folder)).unwrap().map(Result::unwrap) {
        let name = entry.file_name().to_string_lossy().into_owned();
        if entry.file_type().unwrap().is_dir() && name != "tests" {
            let inside = if folder.is_empty() { name } else { format!("{folder}/{name}") };
            folders_with_modules(source, &inside, found);
        } else if name.ends_with(".rs") && !["mod.rs", "lib.rs", "main.rs", "tests.rs"].contains(&&*name) {
            has_modules = true;
        }
    }
    if has_modules {
        found.push(folder.to_owned());
    }
}

/// Crates whose modules are ordered: each folder has an order here, from the lowest module to the highest, or
/// is in [`NOT_YET_ORDERED`].
const ORDERS: [(&str, &[(&str, &str)]); 13] = [
    (
        "serve/nfsd/src",
        &[
            ("", "net rpc exports state stable compound ops executor server"),
            (
                "net",
                "budget record_reader tls listen limits counters fair_queue shared connection reply_batch \
                 sending busy_poll receiving reactor",
            ),
            ("rpc", "call callback"),
            ("exports", "config handle policy table"),
            ("exports/config", "values"),
            (
                "state",
                "ids fault_injection limits range client_record stable_clients effects tables manager \
                 fair_share stats in_flight delegation lock open owner stateids slot session callback copy \
                 reply_memory grace file client v40 lease tickets invariants",
            ),
            (
                "state/tables",
                "events pending back_slot slot session v40 owner client open lock file delegation copy \
                 entry in_flight grace reply_memory",
            ),
            ("stable", "contents log_file log"),
            (
                "compound",
                "status origin denial_log filesystem current_fh idmap op_stats reply_cache clients service \
                 context",
            ),
            (
                "ops",
                "durability component file_io attr access xattr ranges_v42 filehandle readdir namespace open",
            ),
            ("ops/attr", "supported acl_from_posix acl_to_posix get set"),
            (
                "server",
                "runtime event_log copy_queue suspended core background_copy v40_callback callback \
                 state_ops open program stats engine simulated",
            ),
        ],
    ),
    (
        "cli/src",
        &[
            (
                "",
                "state_format output pattern arguments process file_info children archive image commands \
                 command_line",
            ),
            ("archive", "member acl_text pax sparse reader writer"),
            ("output", "format colours failure print findings progress log save"),
            (
                "image",
                "open_options formats foreign_formats partitions mount_options sandbox unmount_status \
                 image_lock image_files other_devices cycle_guard sorted_names directory glob channel server \
                 process open images inode_handle filler",
            ),
            (
                "commands",
                "stat ls cat tree du info check scrub label resize unmount changed measure cp edit shell tar \
                 mkfs mount serve stats fuse2fs man_page manpages image_process",
            ),
            ("commands/changed", "saved_state walk renames compare"),
            ("commands/cp", "interrupt stream reader writer"),
            ("commands/tar", "exclude owners pack unpack"),
            (
                "commands/edit",
                "bytes hexadecimal mode owner session rm chmod mkdir mv ln chown touch attr \
                 subvolume mounted_subvolume show job",
            ),
            ("commands/shell", "input line"),
            ("commands/measure", "policy storage protocol host image"),
            ("commands/mkfs", "args format spec fill source from"),
            ("commands/mount", "help args measurement protocol worker background"),
            (
                "commands/serve",
                "help config_file args config_files helper plan exports reload stats stats_server notify",
            ),
        ],
    ),
    ("core/vfs/src", &[("check", "bits runs tree"), ("remembered", "group")]),
    ("core/journal/src", &[]),
    ("serve/fuse/src", &[]),
    (
        "fs/ext4/src",
        &[
            ("layout", "csum features raw sizes superblock group slot_body inode"),
            ("resize", "plan resize_inode session grow online fits inodes blocks journal shrink"),
            ("xattr", "acl body block inode relocate"),
            (
                "check",
                "state map superblock groups journal orphans quota xattr inode htree dir connect bitmaps",
            ),
        ],
    ),
    ("fs/fat/src", &[("mkfs", "options geometry")]),
    ("fs/affs/src", &[("check", "report")]),
    (
        "fs/ufs/src",
        &[
            (
                "",
                "layout mkfs head alloc volume map file dir xattr reserve write allocate names inode rename \
                 check recover open label driver",
            ),
            ("layout", "bytes superblock group group_map dinode directory"),
            ("check", "reader state inodes directories groups"),
        ],
    ),
    (
        "fs/ocfs2/src",
        &[
            (
                "",
                "layout space volume change map file alloc tree index dir xattr write fallocate names \
                 attributes inode system recover open driver check",
            ),
            ("layout", "bytes blockcheck shape superblock dinode extents group directory name_hash xattr"),
            ("check", "state inodes xattrs chains refcounts directories"),
        ],
    ),
    (
        "fs/nfs/src",
        &[(
            "",
            "target identity owners counters clock background status attributes reply own_changes all_names \
             unstable file_locks file_names deferred callbacks wire connection tls owner_seqids session \
             exchange establish unfinished client_id spares client linking back_channel requests requests40 \
             together lease file_open returns opens opens_by_name closing delegations reclaim nodes listing \
             open kept unsent driver batches contents read_ahead directory names data settings xattrs \
             holes locks space copies sender",
        )],
    ),
    (
        "fs/btrfs/src",
        &[
            (
                "",
                "layout devices volume node_cache dirty_nodes tree chunks numbers compress compressor \
                 decompressed ranges live filesystem interrupted_commit subvolume inode names \
                 subvolume_list xattr data file write open driver check mkfs",
            ),
            ("layout", "bytes features raw key checksum superblock chunk node edit items extent_item"),
            ("live", "groups refs log state session"),
            ("mkfs", "options geometry trees items"),
            (
                "check",
                "ledger space state walk start references extents free_space checksums chunks superblock \
                 roots subvolume names inode files paths scrub",
            ),
            (
                "write",
                "tx tree extents checksums free_space chunks commit load change unshare inodes contents \
                 packing names attributes file allocation clones log_tree replay replay_names removal \
                 dropping subvolumes epoch",
            ),
        ],
    ),
    (
        "fs/xfs/src",
        &[
            (
                "",
                "search delayed layout geometry_facts unit source heads btree fork da inode dir attr symlink \
                 log write live ag loading file sharing open label mkfs driver check",
            ),
            (
                "live",
                "vnode unfreed session volume change attributes edits reservations writeback copies clones \
                 space names removal epoch unmount ops",
            ),
            (
                "write",
                "extent owner hashes node tree_block busy spare windows claims works space counters credits \
                 intents deferred tx finish parent_intents found_intents group tree inode unlinked \
                 free_space find free_list refcount rmap alloc pools inodes hash_tree bmbt fork runs \
                 map_intents dir attr symlink names",
            ),
            ("layout", "bytes features raw dinode owner checksum superblock chunk directory tree attribute"),
            ("dir", "entry names data short"),
            ("attr", "acl attribute leaf short"),
            (
                "log",
                "convert mappings parents refusal stamp wire ring encode items record scan replay writer end \
                 resume",
            ),
            ("log/encode", "buffer inode"),
            ("mkfs", "features options geometry empty_log inodes space headers trees"),
            (
                "check",
                "mapping state tree superblock owners chunks group fork hashtree link names attr inode \
                 listing dir_data dir unlinked connect counts quota",
            ),
            ("write/attr", "acl fork_offset key leaf remote short tree"),
            ("write/dir", "data leaf short block free_index node forms"),
        ],
    ),
];

/// Folders without an order, because their modules use each other in a circle or use the folder's own file.
/// This list only shrinks: mend a folder, and move it to [`ORDERS`]. Add none.
const NOT_YET_ORDERED: [(&str, &str); 14] = [
    ("cli/src", "commands/cp/reader"),
    ("cli/src", "commands/cp/writer"),
    ("core/vfs/src", ""),
    ("core/vfs/src", "driver"),
    ("core/journal/src", ""),
    ("core/journal/src", "jbd2"),
    ("serve/fuse/src", ""),
    ("serve/fuse/src", "ops"),
    ("fs/ext4/src", ""),
    ("fs/ext4/src", "dir"),
    ("fs/ext4/src", "map"),
    ("fs/ext4/src", "mkfs"),
    ("fs/fat/src", ""),
    ("fs/affs/src", ""),
];

#[test]
fn modules_use_only_lower_modules() {
    let mut found = Vec::new();
    for (source, orders) in ORDERS {
        for (folder, order) in orders {
            found.extend(violations(&root().join(source), folder, order));
        }
    }
    assert!(found.is_empty(), "{}", found.join("\n"));
}

#[test]
fn every_folder_has_an_order_or_is_listed_without_one() {
    for (source, orders) in ORDERS {
        let mut folders = Vec::new();
        folders_with_modules(&root().join(source), "", &mut folders);
        folders.sort();
        let without = NOT_YET_ORDERED.iter().filter(|(of, _)| *of == source).map(|(_, folder)| *folder);
        let mut listed: Vec<_> = orders.iter().map(|(folder, _)| *folder).chain(without).collect();
        listed.sort_unstable();
        assert_eq!(folders, listed, "{source}");
    }
}

#[test]
fn folders_that_can_be_ordered_have_an_order() {
    for (source, folder) in NOT_YET_ORDERED {
        let uses = uses_in(&root().join(source), folder);
        assert!(!has_order(&uses), "{source}/{folder}: write down its order, and remove it from the list");
    }
}

#[test]
fn upward_and_unlisted_modules_are_found() {
    let source = root().join("serve/nfsd/src");
    let swapped = "net rpc exports state stable ops compound executor server";
    let found = violations(&source, "", swapped);
    assert!(found.iter().any(|line| line.ends_with("ops uses compound, which is above it")), "{found:?}");
    let missing = violations(&source, "", "net");
    assert!(missing.iter().any(|line| line.ends_with("module ops has no place in the order")), "{missing:?}");
    let swapped = violations(&root().join("cli/src"), "commands/cp", "interrupt reader stream writer");
    assert!(
        swapped.iter().any(|line| line.ends_with("reader uses stream, which is above it")),
        "{swapped:?}"
    );
}

#[test]
fn a_circle_and_a_use_of_the_own_file_prevent_an_order() {
    let has = |uses: &[(&str, &[&str])]| {
        let uses = uses.iter().map(|(module, names)| {
            (PathBuf::new(), module.to_string(), names.iter().map(ToString::to_string).collect())
        });
        has_order(&uses.collect::<Vec<Uses>>())
    };
    assert!(has(&[("a", &["b", "c"]), ("b", &["c", "b"]), ("c", &[])]));
    assert!(!has(&[("a", &["b"]), ("b", &["c"]), ("c", &["a"])]));
    assert!(!has(&[("a", &["Item"])]));
}

#[test]
fn paths_from_the_root_are_found() {
    let text = "use crate::{a::b, c::{d, e},\n    f};\n// crate::comment\n\
                fn g() { $crate::h(); crate::i::j() }\n\
                use super::super::k;\nuse super::l;\n#[cfg(test)]\nmod tests { use crate::m; }";
    let mut names = root_names(text, "crate::", 2);
    names.sort();
    assert_eq!(names, ["a", "c", "f", "i", "k"]);
    assert_eq!(root_names("use super::{a, b::c};", "crate::", 1), ["a", "b"]);
}
