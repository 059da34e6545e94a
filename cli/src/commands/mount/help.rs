//! The second half of `ivers mount --help`.

/// Text after the list of options. A paragraph is one line, since the viewer wraps it; lists are narrower
/// than 80 columns.
pub const HELP: &str = "\
Mount options (-o), separated by commas:
  ro, rw           read-only, writable (the default). An image that can
                   only be read is mounted read-only and standard error
                   says why; refused if rw is given
  iversion=MODE    when the change attribute grows: lazy (the default; also
                   i_version), eager, or off (also noiversion)
  lazytime         keep pure timestamp changes in memory for up to a day
                   (nolazytime: do not)
  lazyversion      keep a bump that a query asked for in memory until the
                   inode is written back. The default where the format
                   stores the change counter (ext2, ext3, ext4, xfs, btrfs):
                   after a crash of ivers every value is raised in any case.
                   Requires iversion=lazy
  nolazyversion    log each bump at once: for images whose stored counter
                   another kernel reads after a crash of ivers
  relatime, noatime, strictatime
                   when the access time is updated (default: relatime)
  cache=SIZE       bound of all caches together, as 64M or 1G: at least 4M
                   (default: 256M)
  partition=N      the partition of a disk image (GPT, MBR or the Amiga's
                   Rigid Disk Block): a number, a name or a PARTUUID. The
                   same as IMAGE@N. Without it the image must have one
                   partition with a filesystem; ivers info IMAGE lists them
  offset=SIZE      start of the filesystem in the image, in bytes or as 1M
  uid=N, gid=N     owner of all files if the format stores no owners (FAT;
                   default: the calling user)
  umask=, fmask=, dmask=
                   permission bits that all files and directories, files, or
                   directories lack in that case (octal; default: the umask
                   of the calling process)
  utc_offset=MIN   offset of the times on a FAT medium from UTC in minutes,
                   positive if ahead (default: 0)
  subvol=PATH, subvolid=N
                   the subvolume of btrfs to open, by its path from the top
                   level or by its number, 5 for the top level (default: the
                   default subvolume)
  degraded         open a btrfs with missing devices, read-only
  compress=METHOD  compress new data of btrfs: zlib, lzo, zstd, zlib:1 to
                   zlib:9, zstd:1 to zstd:15; no value: zlib. The property
                   btrfs.compression or the flag NOCOMPRESS of a file
                   overrides this
  commit=SECONDS   longest time before a change is in the journal: 1 to 900
                   (default: 5)
  trust-foreign    trust stored change attributes although another system
                   wrote to the image
  norecovery       with ro: do not replay the journal, not even in memory
  nonempty         mount on a directory that is not empty, which hides its
                   contents
  measure=POLICY   measure files when they are opened, as IMA does (see
                   ivers measure --help)
  measure_list=FILE
                   the measurement list to extend (default:
                   ivers/measure/mounts/IMAGE.list under $XDG_STATE_HOME
                   or ~/.local/state)
  appraise         refuse to open a file that does not match its security.ima
                   (all files, unless the policy selects some; a policy with
                   such rules requires this option); implies
                   no_writeback_cache. Only ext4, xfs and mem store
                   security.ima
  appraise_key=FILE
                   a key to check signatures; may be repeated
  nosandbox        parse the image without a sandbox (for debugging)
  fakeroot         the user who mounts is root inside the image, as far as the
                   kernel allows
  allow_other      allow access by other users (see /etc/fuse.conf)
  sync, async      make each change durable before its call returns, or not
                   (default: async)
  dirsync          make changes of directories durable before their calls
                   return
  busy_poll=N      how long a thread polls for the next request, or for the
                   reply of a server, before it sleeps, in microseconds: 0
                   to 1000 (default: 100; with a single processor 0)
  threads=N        number of threads that serve: 1 to 64
  no_caller_affinity
                   do not move a thread to the processor of a program that
                   makes many small requests (default: move one, with
                   CAP_SYS_NICE)
  no_strict_queries
                   a query does not wait until the kernel shows all changes
                   that its answer counts (default: it waits if a change is
                   in progress)
  default_permissions, no_default_permissions,
  writeback_cache, no_writeback_cache, suid, dev, exec (and no...),
  fsname=, subtype=
                   as in FUSE

A mount is two processes: a worker that parses the image in a sandbox (Landlock and seccomp), and a \
supervisor that mounts and unmounts. SIGTERM to the supervisor (pid in --json) unmounts. If either is \
killed, programs get errors until `ivers unmount DIR`.

If this program is called by the name fuse2fs (e.g. through a link), it takes the command line of fuse2fs: \
fuse2fs --help.

IMAGE can be a directory of an NFS server: nfs://server[:port]/path. The server checks permissions. A file \
that is removed while it is open stays as .nfs* until it is closed. Options for servers, as in nfs(5):
  vers=4, vers=4.0, vers=4.1, vers=4.2
                   the version of NFS (default: 4, which is 4.2, or 4.1 if the
                   server lacks 4.2). Other commands also take it
  sec=sys          how requests name their user. Kerberos (krb5, krb5i, krb5p)
                   is refused
  xprtsec=none, xprtsec=tls, xprtsec=mtls
                   encrypt connections with TLS (RFC 9289). tls checks the
                   server's certificate; mtls also sends the client's. Default:
                   none. Other commands also take the options of TLS
  tls_authorities=FILE
                   the certificate authorities to trust, in PEM (default:
                   /etc/ssl/certs/ca-certificates.crt)
  tls_certificate=FILE, tls_key=FILE
                   the client's certificate and private key, for mtls
  rsize=N, wsize=N the longest request to read and to write in bytes: 1024 to
                   1048576
  nconnect=N       use up to N connections (1 to 16) for requests in parallel
                   (default: 1)
  cache-dir=DIR, cache-size=SIZE
                   keep contents of files in DIR after the unmount, in at most
                   SIZE bytes (default: 1G). One mount at a time uses DIR, and
                   no other user may enter it. It is created if it does not
                   exist
  actimeo=N        how long attributes count as current, in seconds
                   (default: 3)
  noac             the same as actimeo=0
  nodelegations    open files without delegations. With a delegation, an
                   unchanged file is opened, read and queried without a
                   request until the server reports a writer
  nowritedelegations
                   a close waits until the server has what was written. With
                   a write delegation, a close of a file of up to 1 MiB does
                   not wait; fsync does. Soft mounts have none
  timeo=N          after this time without a reply a request is sent again
                   over a new connection, in tenths of a second
                   (default: 600)
  soft, hard       a request fails after 1 + retrans times timeo, or never
                   (default: hard)
  retrans=N        see soft (default: 2)
  domain=NAME      owners that the server sends as USER@NAME are the users of
                   this machine (default: nobody; numbers are numbers)

In /etc/fstab:
  IMAGE DIR fuse.ivers OPTIONS 0 0

For that, mount(8) requires mount.fuse3 (package fuse3), and ivers in a directory of the system such as \
/usr/local/bin. umount(8) returns before the image is closed, since the kernel does not wait for a process. \
ivers waits for that when it opens the image, up to five minutes. Before another program uses the image \
(e2fsck, a copy), unmount with ivers unmount. To make a mount read-only and writable again: mount -i -o \
remount,ro DIR.

JSON: dir, image, pid, read_only, read_only_because (null if requested). With --foreground it is printed \
when the mount serves.

Examples:
  ivers mount disk.img mnt
  ivers mount disk-with-partitions.img@2 mnt
  ivers mount -o ro,partition=root disk-with-partitions.img mnt
  ivers mount -t mem none mnt
  ivers mount nfs://server/export mnt";
