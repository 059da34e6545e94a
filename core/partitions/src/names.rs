//! Names of the common types.

use uuid::{Uuid, uuid};

use crate::PartitionType;

const MBR: &[(u8, &str)] = &[
    (0x01, "FAT12"),
    (0x04, "FAT16 (small)"),
    (0x05, "extended"),
    (0x06, "FAT16"),
    (0x07, "NTFS or exFAT"),
    (0x0B, "FAT32"),
    (0x0C, "FAT32 (LBA)"),
    (0x0E, "FAT16 (LBA)"),
    (0x0F, "extended (LBA)"),
    (0x27, "Windows recovery"),
    (0x82, "Linux swap"),
    (0x83, "Linux"),
    (0x85, "Linux extended"),
    (0x8E, "Linux LVM"),
    (0xA5, "FreeBSD"),
    (0xA6, "OpenBSD"),
    (0xA9, "NetBSD"),
    (0xAF, "Apple HFS"),
    (0xEE, "GPT"),
    (0xEF, "EFI system"),
    (0xFD, "Linux RAID"),
];

const GPT: &[(Uuid, &str)] = &[
    (uuid!("c12a7328-f81f-11d2-ba4b-00a0c93ec93b"), "EFI system"),
    (uuid!("21686148-6449-6e6f-744e-656564454649"), "BIOS boot"),
    (uuid!("024dee41-33e7-11d3-9d69-0008c781f39f"), "MBR partition scheme"),
    (uuid!("0fc63daf-8483-4772-8e79-3d69d8477de4"), "Linux filesystem"),
    (uuid!("0657fd6d-a4ab-43c4-84e5-0933c84b4f4f"), "Linux swap"),
    (uuid!("933ac7e1-2eb4-4f13-b844-0e14e2aef915"), "Linux home"),
    (uuid!("3b8f8425-20e0-4f3b-907f-1a25a76f98e8"), "Linux server data"),
    (uuid!("bc13c2ff-59e6-4262-a352-b275fd6f7172"), "Linux extended boot"),
    (uuid!("4f68bce3-e8cd-4db1-96e7-fbcaf984b709"), "Linux root (x86-64)"),
    (uuid!("44479540-f297-41b2-9af7-d131d5f0458a"), "Linux root (x86)"),
    (uuid!("b921b045-1df0-41c3-af44-4c6f280d3fae"), "Linux root (ARM-64)"),
    (uuid!("69dad710-2ce4-4e3c-b16c-21a1d49abed3"), "Linux root (ARM)"),
    (uuid!("8484680c-9521-48c6-9c11-b0720656f69e"), "Linux /usr (x86-64)"),
    (uuid!("4d21b016-b534-45c2-a9fb-5c16e091fd2d"), "Linux /var"),
    (uuid!("7ec6f557-3bc5-4aca-b293-16ef5df639d1"), "Linux /var/tmp"),
    (uuid!("e6d6d379-f507-44c2-a23c-238f2a3df928"), "Linux LVM"),
    (uuid!("a19d880f-05fc-4d3b-a006-743f0f84911e"), "Linux RAID"),
    (uuid!("ca7d7ccb-63ed-4c53-861c-1742536059cc"), "Linux LUKS"),
    (uuid!("ebd0a0a2-b9e5-4433-87c0-68b6b72699c7"), "Microsoft basic data"),
    (uuid!("e3c9e316-0b5c-4db8-817d-f92df00215ae"), "Microsoft reserved"),
    (uuid!("de94bba4-06d1-4d40-a16a-bfd50179d6ac"), "Windows recovery"),
    (uuid!("516e7cb4-6ecf-11d6-8ff8-00022d09712b"), "FreeBSD data"),
    (uuid!("48465300-0000-11aa-aa11-00306543ecac"), "Apple HFS+"),
    (uuid!("7c3457ef-0000-11aa-aa11-00306543ecac"), "Apple APFS"),
];

/// Returns the usual name of a type.
pub fn of(kind: PartitionType) -> Option<&'static str> {
    match kind {
        PartitionType::Mbr(id) => MBR.iter().find(|(known, _)| *known == id).map(|(_, name)| *name),
        PartitionType::Gpt(id) => GPT.iter().find(|(known, _)| *known == id).map(|(_, name)| *name),
    }
}
