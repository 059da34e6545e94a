//! Numbers of a filesystem, which has the byte order of the machine that made it.

/// The byte order of a filesystem.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ByteOrder {
    /// As on x86 and ARM.
    Little,
    /// As on SPARC and PowerPC.
    Big,
}

/// The bytes of a structure, with the byte order of its numbers. An offset past the end reads as 0: the
/// caller gives structures their full length.
#[derive(Debug, Clone, Copy)]
pub struct Fields<'a> {
    bytes: &'a [u8],
    order: ByteOrder,
}

impl<'a> Fields<'a> {
    /// Names the bytes of a structure.
    pub fn new(bytes: &'a [u8], order: ByteOrder) -> Self {
        Self { bytes, order }
    }

    /// The bytes.
    pub fn bytes(&self) -> &'a [u8] {
        self.bytes
    }

    fn array<const LEN: usize>(&self, at: usize) -> [u8; LEN] {
        let found = at.checked_add(LEN).and_then(|end| self.bytes.get(at..end)?.try_into().ok());
        found.unwrap_or([0; LEN])
    }

    /// The byte at an offset.
    pub fn u8(&self, at: usize) -> u8 {
        self.array::<1>(at)[0]
    }

    /// The 16-bit number at an offset.
    pub fn u16(&self, at: usize) -> u16 {
        match self.order {
            ByteOrder::Little => u16::from_le_bytes(self.array(at)),
            ByteOrder::Big => u16::from_be_bytes(self.array(at)),
        }
    }

    /// The 32-bit number at an offset.
    pub fn u32(&self, at: usize) -> u32 {
        match self.order {
            ByteOrder::Little => u32::from_le_bytes(self.array(at)),
            ByteOrder::Big => u32::from_be_bytes(self.array(at)),
        }
    }

    /// The 64-bit number at an offset.
    pub fn u64(&self, at: usize) -> u64 {
        match self.order {
            ByteOrder::Little => u64::from_le_bytes(self.array(at)),
            ByteOrder::Big => u64::from_be_bytes(self.array(at)),
        }
    }

    /// The check hash of a structure: CRC-32C without the final inversion, with the hash itself as zeros.
    pub fn check_hash(&self, hash_at: usize) -> u32 {
        let (before, after) = self.bytes.split_at(hash_at.min(self.bytes.len()));
        let crc = crc32c::crc32c_append(crc32c::crc32c(before), &[0; 4]);
        !crc32c::crc32c_append(crc, after.get(4..).unwrap_or_default())
    }
}

/// The bytes of a structure that is written. What is past the end is not written: the caller gives structures
/// their full length.
#[derive(Debug)]
pub struct FieldsMut<'a> {
    bytes: &'a mut [u8],
    order: ByteOrder,
}

impl<'a> FieldsMut<'a> {
    /// Names the bytes of a structure.
    pub fn new(bytes: &'a mut [u8], order: ByteOrder) -> Self {
        Self { bytes, order }
    }

    fn put<const LEN: usize>(&mut self, at: usize, little: [u8; LEN], big: [u8; LEN]) {
        let field = at.checked_add(LEN).and_then(|end| self.bytes.get_mut(at..end));
        if let Some(field) = field {
            field.copy_from_slice(if self.order == ByteOrder::Little { &little } else { &big });
        }
    }

    /// Sets the 16-bit number at an offset.
    pub fn u16(&mut self, at: usize, value: u16) {
        self.put(at, value.to_le_bytes(), value.to_be_bytes());
    }

    /// Sets the 32-bit number at an offset.
    pub fn u32(&mut self, at: usize, value: u32) {
        self.put(at, value.to_le_bytes(), value.to_be_bytes());
    }

    /// Sets the 64-bit number at an offset.
    pub fn u64(&mut self, at: usize, value: u64) {
        self.put(at, value.to_le_bytes(), value.to_be_bytes());
    }

    /// Sets the [check hash](Fields::check_hash) of the structure, which is stored at an offset.
    pub fn set_check_hash(&mut self, at: usize) {
        let hash = Fields::new(self.bytes, self.order).check_hash(at);
        self.u32(at, hash);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_the_byte_order_of_the_filesystem() {
        let bytes = [1, 2, 3, 4, 5, 6, 7, 8, 9];
        let (little, big) = (Fields::new(&bytes, ByteOrder::Little), Fields::new(&bytes, ByteOrder::Big));
        assert_eq!((little.u8(8), little.u16(0), big.u16(0)), (9, 0x0201, 0x0102));
        assert_eq!((little.u32(1), big.u32(1)), (0x0504_0302, 0x0203_0405));
        assert_eq!((little.u64(0), big.u64(1)), (0x0807_0605_0403_0201, 0x0203_0405_0607_0809));
        assert_eq!((big.u64(2), big.u16(usize::MAX)), (0, 0));
    }

    #[test]
    fn numbers_are_read_as_they_were_written() {
        for order in [ByteOrder::Little, ByteOrder::Big] {
            let mut bytes = [0; 16];
            let mut written = FieldsMut::new(&mut bytes, order);
            written.u16(0, 0x0102);
            written.u32(2, 0x0304_0506);
            written.u64(6, 0x0708_090A_0B0C_0D0E);
            written.u32(13, u32::MAX);
            let read = Fields::new(&bytes, order);
            assert_eq!((read.u16(0), read.u32(2), read.u64(6)), (0x0102, 0x0304_0506, 0x0708_090A_0B0C_0D0E));
            FieldsMut::new(&mut bytes, order).set_check_hash(4);
            let read = Fields::new(&bytes, order);
            assert_eq!(read.u32(4), read.check_hash(4));
        }
    }

    #[test]
    fn a_check_hash_leaves_itself_out() {
        // The CRC-32C of 32 zero bytes, from RFC 3720, B.4.
        assert_eq!(Fields::new(&[0; 32], ByteOrder::Little).check_hash(8), !0x8a91_36aa);
        let hash = |bytes: &[u8]| Fields::new(bytes, ByteOrder::Big).check_hash(2);
        assert_eq!(hash(b"ab1234cd"), hash(b"ab9876cd"));
        assert_ne!(hash(b"ab1234cd"), hash(b"ab1234ce"));
    }
}
