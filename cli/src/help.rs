//! The second halves of `--help` and of the manual pages: what the lists of options do not say, and examples.
//!
//! Paragraphs are one line each, since whoever shows them knows how wide; lists stay below 80 columns.

/// Of `ivers` itself.
pub const IVERS: &str = "\
Exit codes, of every command:
  0  done
  1  failed while it was done (I/O error, no space, permission);
     of cp: what was named was not copied, all the rest was
  2  the command line is wrong
  3  a file, path or image is not there
  4  refused: the image needs a feature that ivers does not have, or holds
     no filesystem that it knows; the directory is on no mount of ivers
  5  the image is damaged: the checker of its format may mend it (e2fsck,
     fsck.fat; xdfscan finds damage of AFFS)
  6  the image or the mount is in use

To begin with:
  ivers mkfs disk.img --size 1G --root-owner
  ivers cp -a some/tree disk.img:/
  ivers ls -l disk.img:/
  ivers mount disk.img mnt
  ivers stat mnt/tree
  ivers unmount mnt";

/// Of `mount`.
pub const MOUNT: &str = "\
Mount options (-o), separated by commas:
  ro, rw           read-only, writable (the default). An image that can
                   only be read is mounted read-only and standard error
                   says why; refused if rw was asked for
  iversion=MODE    when the change attribute moves: lazy (the default; also
                   i_version), eager, or off (also noiversion)
  lazytime         keep pure timestamp changes in memory for up to a day
                   (and nolazytime)
  lazyversion      keep a change attribute that was raised in memory until
                   the inode is written back: writes that somebody asks
                   about cost hardly more than others. Promises stay the
                   same, since a crash raises all. With iversion=lazy
                   alone (and nolazyversion)
  relatime, noatime, strictatime
                   when the access time moves (relatime is the default)
  cache=SIZE       bound of all caches together, as 64M or 1G: at least 4M
                   (default 256M)
  offset=SIZE      where in the image the filesystem begins (a partition),
                   in bytes or as 1M
  partition=NAME   which partition of an Amiga's hard disk (Rigid Disk Block),
                   by name or number
  uid=N, gid=N     whose all files are, where the format keeps no owners (FAT;
                   default: of whoever mounts)
  umask=, fmask=, dmask=
                   permission bits that all, files, directories do not have
                   there (octal; default: the umask of whoever mounts)
  utc_offset=MIN   how far times on a FAT medium are ahead of UTC (default: 0)
  commit=SECONDS   longest time that a change stays out of the journal:
                   1 to 900 (default 5)
  trust-foreign    believe stored change attributes though another system
                   wrote to the image
  norecovery       with ro: do not replay the journal, not even in memory
  nonempty         mount though there is something in the directory, which
                   then cannot be seen
  measure=POLICY   measure files when they are opened, as IMA does (see
                   ivers measure --help)
  measure_list=FILE
                   where the measurement list goes, which only grows
                   (default: ivers/measure/mounts/IMAGE.list under
                   $XDG_STATE_HOME or ~/.local/state)
  appraise         refuse to open what is not what its security.ima says
                   (all files, unless the policy says which; a policy
                   with such rules is refused without this); implies
                   no_writeback_cache. ext4 and mem alone keep security.ima
  appraise_key=FILE
                   a key that signatures are checked with; may be repeated
  nosandbox        do not lock the process in that parses the image
                   (for debugging)
  fakeroot         who mounts is root inside the image, as far as the
                   kernel allows
  allow_other      others may look too (see /etc/fuse.conf)
  sync, async      whether every change is durable before its call returns
                   (default: async)
  dirsync          so are the changes of directories
  linger=N         microseconds that a serving thread looks out for the next
                   request before it sleeps: 0 to 1000 (default 100; on a
                   single processor 0)
  threads=N        threads that serve: 1 to 64
  no_company       no serving thread goes to the processor of a program that
                   makes many small requests (one does, with CAP_SYS_NICE)
  no_strict_queries
                   a query does not wait until the kernel shows all that its
                   answer counts (it does, if a change is under way)
  default_permissions, no_default_permissions,
  writeback_cache, no_writeback_cache, suid, dev, exec (and no...),
  fsname=, subtype=
                   as FUSE has them

A mount is two processes: one that parses the image, locked in by Landlock and seccomp, and one that mounts and unmounts. SIGTERM to the \
second (its number is in --json) unmounts. If either is killed, programs get errors until `ivers unmount DIR`.

Called under the name fuse2fs (by a link, say) this program takes that one's command line: fuse2fs --help.

In /etc/fstab:
  IMAGE DIR fuse.ivers OPTIONS 0 0

mount(8) needs mount.fuse3 (package fuse3) for that, and finds ivers in the system's directories only, as /usr/local/bin.
umount(8) returns before the image is closed, since the kernel does not wait for a process. The next ivers that opens the image waits for
it, up to five minutes; before other programs use it (e2fsck, a copy of the image), unmount with ivers unmount. To make a mount read-only
and writable again: mount -i -o remount,ro DIR.

JSON: dir, image, pid, read_only, read_only_because (null if it was asked for). With --foreground: as soon as the mount serves.

Examples:
  ivers mount disk.img mnt
  ivers mount -o ro,offset=1048576 disk-with-partitions.img mnt
  ivers mount -t mem none mnt";

/// Of `serve`.
pub const SERVE: &str = "\
Options of an export, separated by commas (\\, is a comma in a name):
  name=/PATH       where it appears (default: the image's name without its
                   ending); no export lies below another
  ro, rw           read-only, writable (the default). An image that can only
                   be read is served so, and standard error says why; refused
                   if rw was asked for
  clients=LIST     addresses and networks that may come in, with semicolons
                   between them (default: this machine alone)
  root_squash, no_root_squash
                   whether user and group 0 become nobody (the default)
  all_squash       everybody becomes nobody
  anonuid=N, anongid=N
                   who nobody is (default 65534)
  async            changes of names and attributes are answered before they
                   are durable; a crash may take those of the last seconds
                   (commit=). Data is durable when WRITE and COMMIT say so,
                   with the names that lead to it
  sec=LIST         flavours, with semicolons between them: sys (the default),
                   none
  tls=required     only over TLS
  tls=certificate  only over TLS, with a certificate of the client's
  names=LIST       one of these must be among the certificate's DNS names
  type=TYPE        auto (the default), ext4 (ext2 and ext3 too), fat, affs or
                   mem
  offset=, partition=, cache=, iversion=, lazytime, lazyversion, relatime,
  noatime, strictatime, sync, dirsync, commit=, trust-foreign, norecovery,
  uid=, gid=, umask=, fmask=, dmask=, utc_offset=
                   as `ivers mount` has them

It stays in the foreground; messages go to standard error. SIGHUP has it read its file, the certificates and the names of owners again: exports get other clients, access and names, \
or vanish (their handles are stale then); images are not opened any more. What is wrong changes nothing, and is said. At a terminal SIGHUP ends it.

SIGTERM or SIGINT end it in good order: no new calls, those under way are answered \
(for at most five seconds), everything is written and the images are closed. Another signal, a second later or more, ends it at once, which is a crash to images and clients. What \
clients hold survives either: it is written down in the state directory, and after the next start they claim it again, within a grace time of one and a half times the \
lease at most, in which nobody gets anything else.

Before it reads an image the process locks itself in by Landlock and seccomp: it can open no file but those of its state directory, and connect to nobody. \
A process beside it, which reads nothing of the images, opens the files for SIGHUP and connects to clients of NFSv4.0 who want to be called back.

Sockets that systemd has opened (LISTEN_FDS) take the place of --listen; readiness is told to NOTIFY_SOCKET. Unit files are in packaging/systemd.

The file that --config names (relative paths in it begin in its directory; of one that comes by a descriptor, /dev/stdin or <(...), in the current one, and it is not read again):
  listen = [\"192.0.2.1\", \"[2001:db8::1]:2049\"]
  state = \"/var/lib/ivers/serve\"
  metrics = \"127.0.0.1:9149\"     # Prometheus text over HTTP
  lease_s = 90
  log_format = \"json\"            # also: threads, delegations, sandbox

  [limits]                         # also: client_connections, total_bytes,
  connections = 1024               # client_bytes, clients, sessions,
                                   # client_stateids, client_delegations,
                                   # client_locks
  [tls]
  certificate = \"server.pem\"
  key = \"server.key\"
  client_authorities = \"clients.pem\"
  client_required = false          # true: nobody connects without one

  [owners]                         # names; to who sends numbers, and if
  domain = \"example.org\"           # this is not said: numbers
  passwd = \"/etc/passwd\"           # where the names are
  group = \"/etc/group\"

  [[export]]
  name = \"/photos\"
  image = \"/srv/photos.img\"
  options = \"noatime,cache=1G\"   # as of ivers mount; also: type
  access = \"ro\"                  # also: clients, root_squash, all_squash,
                                   # anonuid, anongid, async, sec, tls,
                                   # names
  [[export.rule]]                  # the first that names the address counts
  clients = [\"192.0.2.7\"]        # before the above
  access = \"rw\"

On a client (Linux):
  mount -t nfs4 -o vers=4.2 HOST:/photos /mnt

JSON, as soon as it serves: pid, addresses, exports [{name, image, read_only, read_only_because}], metrics, state, sandbox.

Examples:
  ivers serve photos.img
  ivers serve --listen 0.0.0.0 --export photos=/srv/p.img,ro,clients=192.0.2.0/24
  ivers serve --config /etc/ivers/serve.toml
  ivers stats --prometheus /var/lib/ivers/serve";

/// Of `unmount`.
pub const UNMOUNT: &str = "\
If programs have files open there, nothing is done (exit code 6): close them, or use --lazy. Exit code 1 says that the image could \
not be closed in good order, and why. A mount whose process died is taken away as well.

JSON: dir, fs, uuid.

Examples:
  ivers unmount mnt
  ivers unmount --lazy mnt";

/// Of `stat`.
pub const STAT: &str = "\
`change` is the change attribute: another number, and a larger one, after anything about the file has changed since somebody last looked. \
`stored` is the counter as the image has it once the inode is written back. `keeps` names the promises: that changes of data and of metadata move it, that it only grows \
(monotonic), that it outlives the mount (persistent) and a crash (crash_safe).

JSON, one object a file: path, ino, generation, change and stored (decimal strings; null where there is no change attribute), semantics \
{cookie, no_cookie, data, metadata, monotonic, persistent, crash_safe}, kind, mode (octal), uid, gid, nlink, size, blocks, atime, mtime, ctime, \
btime ({sec, nsec}; btime is null where there is none).

Examples:
  ivers stat mnt/file
  ivers stat --json disk.img:/etc/passwd";

/// Of `changed`.
pub const CHANGED: &str = "\
Each line is a letter and a path relative to TREE, whose own directory is `.`: N new, C changed, R removed. With -0 there are paths \
alone, each with `./` in front (so that no name looks like an option or a comment) and ended by a NUL, and removed ones only if --only asks \
for them. A path is unchanged if filesystem, inode number, generation and change attribute are all as \
saved. Where there is no change attribute every file counts as changed. What this user may not look at is named on standard error (but for \
lost+found), counts as it was, and makes the exit code 1.

JSON, one object a line: path, status (new, changed, removed), ino, generation, change (decimal strings).

Examples, to remember how things are, to see what changed since, and to copy that (removed files have a recipe in the README):
  ivers changed mnt --save state
  ivers changed mnt --since state
  ivers changed mnt --since state --save state.new -0 > list &&
    rsync -a0 --files-from=list mnt/ copy/ && mv state.new state";

/// Of `measure`.
pub const MEASURE: &str = "\
Each regular file below PATH that the policy names gets an entry in the measurement list, in the format of the kernel's IMA (ima-ng or ima-sig): \
its digest and its name. The list only grows: an entry that it has is not added again. Beside it the store keeps each digest under filesystem, \
inode number, generation and change attribute; a file for which all of these are as they were is not read again. Where there is no change \
attribute, or one that does not outlive the mount, files are read again each time, or in each mount.

The aggregate of the list (PCR 10, in software) is printed for the banks SHA-1, SHA-256 and SHA-512; evmctl checks one against the other.

A policy has a rule a line: measure, dont_measure, appraise or dont_appraise, and conditions, all of which must fit. The first rule that fits \
decides. What is not understood is refused with its line.
  func=FILE_CHECK         a file is opened (BPRM_CHECK: to be run)
  mask=MAY_READ           for this alone (MAY_WRITE, MAY_EXEC, MAY_APPEND);
                          ^MAY_READ: for this among others
  uid=N uid>N uid<N       by whom; so too gid, fowner, fgroup
  fsuuid=UUID fsname=ext4 on which filesystem
  path=/etc               what is below this directory of the filesystem (not
                          in the kernel's policies); \\040 is a space. What
                          a client reaches by number alone, without a name
                          since the mount, is below all of measure and
                          appraise, and below none of dont_
  template=ima-sig        of measure: with the signature
  appraise_type=imasig    of appraise: a digest in security.ima will not do

Files of a mount have the names that they have in the system, files of an image those that they have in it. A file that the policy appraises and \
that is not what its security.ima says is named on standard error, and the exit code is 1; without a policy that appraises, --key checks the \
signatures that are there.

JSON, one object a file: path, ino, generation, change, digest, size, read, verified (null if nothing was checked); then one with files, read, \
read_bytes, not_read, not_read_bytes, verified, refused, unvouched (what is read each time), list, store, entries, new_entries, violations, \
aggregates.

Examples, the last one for what a mount measured by itself:
  ivers measure disk.img:/
  ivers measure mnt --policy policy --list list --key cert.pem
  ivers measure mnt --list list --pcrs pcrs
  evmctl ima_measurement --pcrs sha256,pcrs/sha256 list
                          (with --ignore-violations if there are any)
  ivers measure --of mnt --ascii /dev/stdout";

/// Of `ls`.
pub const LS: &str = "\
With --long: type and permissions, links, owner, group, size (of a device: its numbers), time of modification in UTC, name. Numbers, since \
the names of users are in another system's files.

JSON, one object a name: name, ino, kind, mode (octal), uid, gid, nlink, size, mtime {sec, nsec}, target.

Examples:
  ivers ls disk.img
  ivers ls -la disk.img:/etc
  ivers ls -o offset=1048576 disk-with-partitions.img:/boot";

/// Of `cat`.
pub const CAT: &str = "\
JSON, one object a file: path, contents (text only).

Examples:
  ivers cat disk.img:/etc/fstab
  ivers cat disk.img:/var/log/syslog.1 disk.img:/var/log/syslog | less";

/// Of `cp`.
pub const CP: &str = "\
Directories with --recursive, hard links as hard links, holes as holes. Symbolic links are copied as links, but followed where the command \
line names them without --recursive. FIFOs and sockets are made anew, device nodes too where that is allowed. SRC/. means what is in SRC.

With --preserve: owners (as far as this user may give files away: else without set-id bits), permissions, times to the nanosecond, ACLs and \
extended attributes (those that this user may not set are left out). Without: permissions less the umask; in an image all belongs to root.

What cannot be copied is named on standard error and the rest is copied; the exit code says so. A name in the way is replaced, a symbolic \
link too, but no directory, and a file that holds a filesystem only with --force: IMAGE alone is the file, IMAGE:/ what is in it. -o goes for all images of the command line.

JSON: copied (how many words of the command line were looked at), files (files, directories and links that are there now), problems.

Examples:
  ivers cp disk.img:/etc/fstab .
  ivers cp -a disk.img:/home backup
  ivers cp -a tree/. disk.img:/srv
  ivers cp -a old.img:/. new.img:/";

/// Of `tree`.
pub const TREE: &str = "\
JSON, one object a file: path, ino, kind, size.

Examples:
  ivers tree disk.img:/etc
  ivers tree -L 2 disk.img";

/// Of `info`.
pub const INFO: &str = "\
JSON: fs, uuid, label, block_size, blocks, blocks_free, files, files_free, semantics (as of stat), details; of a mount also instance, pid, \
read_only, sandbox, iversion, lazytime, lazyversion.

Examples:
  ivers info disk.img
  ivers info mnt";

/// Of `stats`.
pub const STATS: &str = "\
JSON: changes, queries, bumps, bumps_put_off (by lazyversion), bumps_avoided, inode_updates and its parts (inode_updates_times, _version, _allocation, _metadata), \
inode_updates_avoided, journal_blocks, journal_bytes, data_bytes, written_back_bytes.

A server is asked by its state directory, by who may write there: pid, sandbox, boot (one more at each start), uptime_s, now (what there is: clients, \
sessions, opens, locks, delegations, connections, ...), total (what has happened since the start), operations {NAME: {calls, errors}}, errors {NAME: count}, \
exports {NAME: {image, read_only, and what a mount tells}}.

Examples:
  ivers stats mnt
  ivers stats /var/lib/ivers/serve
  ivers stats --prometheus mnt";

/// Of `mkfs`.
pub const MKFS: &str = "\
The features are those that e2fsprogs 1.47 enables by default. Given --uuid, --hash-seed and --timestamp, equal calls on equal files make \
equal images, byte for byte (of a file without data it is known that it reads as zeros, and the image says so). Nothing is written before all checks have passed.

JSON: path, fs, uuid, block_size, blocks, inodes, groups, journal_blocks.

Examples:
  ivers mkfs disk.img --size 1G --root-owner
  ivers mkfs -L data -m 0 /dev/sdx1";

/// Of `bench`.
pub const BENCH: &str = "\
In-process: eager (old), lazy (new) and off (none), and as root the kernel's ext4 on an equal image, all interleaved. With --fuse: `ivers \
mount`, fuse2fs and, as root, the kernel's ext4 and a null passthrough (libfuse's passthrough_ll over the kernel's ext4: what FUSE itself costs) \
on equal images. What is missing is said. The passthrough is compiled from libfuse3-dev and kept in ivers/peers under \
$XDG_CACHE_HOME or ~/.cache.

--report measures all that and writes index.html (tables and plots, in one file), main.svg (the main plot) and rows.json, from which --from makes them \
again, also of several runs.

Rows:
  overwrite_1_byte, append_1_byte (dd bs=1), append_4k, sequential_4k_8_jobs (fio), on mem too; on ext4 alone:
  sequential_4k_8_jobs_queried: the same while a thread asks for the change attribute in a loop, each time with a system call, as a process would
  query_hammer_1, _2, _8: while as many threads ask without rest
  query_curve: by how often somebody asks
  lazyversion_8_jobs_queried, lazyversion_query_curve: those with jobs and the curve, mounted with -o lazyversion
  write_sizes: 1 byte to 1 MiB
  scaling_own_files, scaling_one_file: one and two threads
  updates_by_tick: inode updates a million writes, by the clock's tick
  inode_memory: bytes that an inode takes in the cache (of a tenth as many inodes as --ops)
  tiobench_write, tiobench_randwrite, tiobench_read, tiobench_randread: fio's example, four jobs past the cache
  msync_pages: threads touch the pages of a sparse file, then fsync
  latency_1_byte, latency_4k_8_jobs, latency_4k_fsync: the tails, and what reaches the device
  full_append_1_byte, full_sequential_4k_8_jobs, full_sequential_4k_8_jobs_queried, full_tiobench_write (_randwrite, _read, _randread): at the size \
of the originals as far as that is sensible; minutes each, so only by name or with --all, and up to 10 GB of temporary files
  Through FUSE (with --fuse, --report or by name):
  fuse_write_1_byte, fuse_write_4k, and while another process asks about the file: fuse_write_1_byte_stat (for its times), \
fuse_write_1_byte_asked (for the change attribute)
  fuse_create, fuse_unlink; fuse_untar, fuse_walk_stat (of --tree)
  fuse_build, fuse_build_again: make -j and cc over a tree of C files that is made here (200 of them; --ops / 5000), objects and archives \
renamed into place, what is built is run and checked; and a second make, which finds nothing to do. It is not the kernel's tree
  fuse_fio_4k_8_jobs, fuse_msync: fio's jobs, where it is installed
  `cargo xtask bench` in the source tree has these rows and, on one page with them and by the same --only, nfs_* (`ivers serve` with a lazy counter \
beside an eager one and nfs-ganesha) and peers_* (other libraries).

JSON: {rows: [...]}. Each row has name, fs, unit (ops/s), ops and rounds; old, new and none (medians in that unit), new_over_old and \
new_over_none (above 1: new is better) and their spread (quartiles of the rounds' own ratios); ns_per_op, inode_updates and journal_blocks, \
each {old, new, none}; peers {NAME: {value, ns_per_op}}, new_over_peer {NAME: ratio}, and peers_missing {NAME: why}; points if it is a curve, seeds \
if they measured it. docs/json.md has all names. With --fuse the rows are named fuse_*; new is the default mount, and seconds has the medians of each.

Examples:
  ivers bench --fs mem --ops 100000
  ivers bench --only query_hammer,write_sizes
  ivers bench --only fuse_build --fuse-rounds 5
  ivers bench --fuse --json
  ivers bench --report out";

/// Of `completions`.
pub const COMPLETIONS: &str = "\
Examples:
  ivers completions bash > ~/.local/share/bash-completion/completions/ivers
  ivers completions fish > ~/.config/fish/completions/ivers.fish
  ivers completions zsh > ~/.zfunc/_ivers";

/// Of `man`.
pub const MAN: &str = "\
Examples:
  ivers man ~/.local/share/man/man1";

#[cfg(test)]
mod tests {
    use crate::args::Cli;
    use clap::{CommandFactory, Parser};

    /// What a shell would hand over, up to where it would do something else.
    fn words(line: &str) -> Vec<&str> {
        line.split_whitespace().take_while(|word| !["|", ">", "<"].contains(word)).collect()
    }

    #[test]
    fn every_command_has_examples_and_they_are_taken() {
        let mut command = Cli::command();
        let mut seen = 0;
        let mut texts = vec![command.render_long_help().to_string()];
        for sub in command.get_subcommands_mut().filter(|sub| !sub.is_hide_set() && sub.get_name() != "help")
        {
            let help = sub.render_long_help().to_string();
            assert!(help.contains("\n  ivers "), "{}: no example", sub.get_name());
            texts.push(help);
        }
        for line in texts.iter().flat_map(|text| text.lines()).filter(|line| line.starts_with("  ivers ")) {
            Cli::try_parse_from(words(line)).unwrap_or_else(|error| panic!("{line}: {error}"));
            seen += 1;
        }
        assert!(seen > 20);
    }

    #[test]
    fn lists_stay_narrow() {
        for text in
            [super::IVERS, super::MOUNT, super::SERVE, super::MKFS, super::CP, super::CHANGED, super::MEASURE]
        {
            for line in text.lines().filter(|line| line.starts_with("  ") && !line.starts_with("  ivers ")) {
                assert!(line.len() < 80, "{line}");
            }
        }
    }
}
