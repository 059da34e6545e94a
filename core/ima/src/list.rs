//! The measurement list, in the formats of the kernel's `binary_runtime_measurements` and
//! `ascii_runtime_measurements` in securityfs (Documentation/security/IMA-templates.rst; ima_fs.c for the
//! order of the fields).
//!
//! A binary entry; numbers are little-endian (the kernel's `ima_canonical_fmt`):
//!
//! ```text
//! pcr             u32, always 10
//! template digest 20 bytes, SHA-1 of the template data; zeros for a violation
//! name length     u32
//! name            "ima-ng" or "ima-sig", without a NUL
//! data length     u32
//! data            fields, each a u32 length and that many bytes:
//!   d-ng          algorithm, ':', NUL, digest of the file
//!   n-ng          path and NUL; spaces are replaced by underscores
//!   sig           `ima-sig` only: `security.ima` if it is a signature, otherwise empty
//! ```
//!
//! Each PCR bank is extended as in a TPM: new value = H(old value, template digest). The template digest is
//! that of the fields with their lengths, in the algorithm of the bank. The template data of a violation has
//! a file digest of zeros, and the banks are extended by bytes of 0xff instead: a list from which the
//! violation was removed no longer matches them.

use crate::digest::{Algorithm, Digest, Hasher, hex};

/// The register that measurements extend (CONFIG_IMA_MEASURE_PCR_IDX).
pub const PCR: u32 = 10;
/// The number of registers in a bank of a TPM.
const PCR_COUNT: u32 = 24;

/// The banks that are computed.
pub const BANKS: [Algorithm; 3] = [Algorithm::Sha1, Algorithm::Sha256, Algorithm::Sha512];

/// The path in the first entry.
pub const BOOT_AGGREGATE: &[u8] = b"boot_aggregate";

/// The fields of an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Template {
    /// Digest and path.
    #[default]
    ImaNg,
    /// Digest, path and signature.
    ImaSig,
}

impl Template {
    /// Returns the kernel's name of the template.
    pub fn name(self) -> &'static str {
        match self {
            Template::ImaNg => "ima-ng",
            Template::ImaSig => "ima-sig",
        }
    }

    /// Returns the template of this name.
    pub fn by_name(name: &[u8]) -> Option<Self> {
        [Template::ImaNg, Template::ImaSig].into_iter().find(|template| template.name().as_bytes() == name)
    }
}

/// An entry of the list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    template: Template,
    violation: bool,
    data: Vec<u8>,
}

fn put_field(data: &mut Vec<u8>, parts: &[&[u8]]) {
    let len: usize = parts.iter().map(|part| part.len()).sum();
    data.extend_from_slice(&u32::try_from(len).unwrap_or(u32::MAX).to_le_bytes());
    for part in parts {
        data.extend_from_slice(part);
    }
}

impl Entry {
    /// Creates an entry: the file of this path had contents of this digest. `signature` is the value of
    /// `security.ima` if that is a signature.
    pub fn measured(template: Template, digest: &Digest, name: &[u8], signature: Option<&[u8]>) -> Self {
        Self::build(template, digest, name, signature, false)
    }

    /// Creates a violation: the file of this path changed while it was used, so its contents are unknown.
    pub fn violation(template: Template, algorithm: Algorithm, name: &[u8]) -> Self {
        Self::build(template, &Digest::filled(algorithm, 0), name, None, true)
    }

    /// Creates the first entry of a list as the kernel does without a TPM: its digest is zeros
    /// (`ima_add_boot_aggregate`).
    pub fn boot_aggregate(template: Template, algorithm: Algorithm) -> Self {
        Self::measured(template, &Digest::filled(algorithm, 0), BOOT_AGGREGATE, None)
    }

    fn build(
        template: Template,
        digest: &Digest,
        name: &[u8],
        signature: Option<&[u8]>,
        violation: bool,
    ) -> Self {
        let mut data = Vec::with_capacity(64 + digest.bytes().len() + name.len());
        put_field(&mut data, &[digest.algorithm().name().as_bytes(), b":\0", digest.bytes()]);
        // In the ASCII list a space ends a field (ima_write_template_field_data).
        let name: Vec<u8> = name.iter().map(|&byte| if byte == b' ' { b'_' } else { byte }).collect();
        put_field(&mut data, &[&name, b"\0"]);
        if template == Template::ImaSig {
            put_field(&mut data, &[signature.unwrap_or_default()]);
        }
        Self { template, violation, data }
    }

    /// Creates an entry from template data; `None` if the data does not have the template's fields.
    pub(crate) fn decode(template: Template, violation: bool, data: Vec<u8>) -> Option<Self> {
        fields(template, &data)?;
        Some(Self { template, violation, data })
    }

    /// Returns the template.
    pub fn template(&self) -> Template {
        self.template
    }

    /// Returns whether the entry is a violation.
    pub fn is_violation(&self) -> bool {
        self.violation
    }

    /// Returns the template data.
    pub fn data(&self) -> &[u8] {
        &self.data
    }

    /// Returns the decoded fields.
    pub fn fields(&self) -> Fields<'_> {
        fields(self.template, &self.data).expect("an entry has the fields of its template")
    }

    /// Returns the digest by which the bank of this algorithm is extended.
    pub fn template_digest(&self, bank: Algorithm) -> Digest {
        if self.violation { Digest::filled(bank, 0xff) } else { bank.digest(&self.data) }
    }

    /// Returns the SHA-1 template digest as the list contains it.
    fn list_digest(&self) -> Digest {
        match self.violation {
            true => Digest::filled(Algorithm::Sha1, 0),
            false => Algorithm::Sha1.digest(&self.data),
        }
    }

    /// Returns the binary entry.
    pub fn encode(&self) -> Vec<u8> {
        let name = self.template.name().as_bytes();
        let mut out = Vec::with_capacity(40 + self.data.len());
        out.extend_from_slice(&PCR.to_le_bytes());
        out.extend_from_slice(self.list_digest().bytes());
        put_field(&mut out, &[name]);
        put_field(&mut out, &[&self.data]);
        out
    }

    /// Returns the entry as a line of the ASCII list, with its newline. It is bytes because a path is.
    pub fn ascii(&self) -> Vec<u8> {
        let fields = self.fields();
        let digest = hex(fields.digest);
        let head = format!("{PCR:2} {} {} ", self.list_digest().hex(), self.template.name());
        let mut line = head.into_bytes();
        line.extend_from_slice(fields.algorithm);
        line.extend_from_slice(b":");
        line.extend_from_slice(digest.as_bytes());
        line.push(b' ');
        line.extend_from_slice(fields.name);
        if let Some(signature) = fields.signature {
            line.push(b' ');
            line.extend_from_slice(hex(signature).as_bytes());
        }
        line.push(b'\n');
        line
    }
}

/// The decoded fields of an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fields<'a> {
    /// The name of the digest's algorithm.
    pub algorithm: &'a [u8],
    /// The digest of the file.
    pub digest: &'a [u8],
    /// The path, without its NUL.
    pub name: &'a [u8],
    /// The signature, if the template has that field; empty if the file is not signed.
    pub signature: Option<&'a [u8]>,
}

fn take_field<'a>(data: &mut &'a [u8]) -> Option<&'a [u8]> {
    let (len, rest) = data.split_first_chunk::<4>()?;
    let (field, rest) = rest.split_at_checked(usize::try_from(u32::from_le_bytes(*len)).ok()?)?;
    *data = rest;
    Some(field)
}

fn fields(template: Template, mut data: &[u8]) -> Option<Fields<'_>> {
    let digest = take_field(&mut data)?;
    let colon = digest.iter().position(|&byte| byte == b':')?;
    let (algorithm, digest) = (&digest[..colon], digest[colon + 1..].strip_prefix(b"\0")?);
    let name = take_field(&mut data)?.strip_suffix(b"\0")?;
    let signature = match template {
        Template::ImaNg => None,
        Template::ImaSig => Some(take_field(&mut data)?),
    };
    data.is_empty().then_some(Fields { algorithm, digest, name, signature })
}

/// The value of PCR 10 in each bank, computed in software. Values start as zeros.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Aggregates([Digest; BANKS.len()]);

impl Default for Aggregates {
    fn default() -> Self {
        Self(BANKS.map(|bank| Digest::filled(bank, 0)))
    }
}

impl Aggregates {
    /// Extends all banks by an entry.
    pub fn extend(&mut self, entry: &Entry) {
        for value in &mut self.0 {
            let mut hasher = Hasher::new(value.algorithm());
            hasher.update(value.bytes());
            hasher.update(entry.template_digest(value.algorithm()).bytes());
            *value = hasher.finish();
        }
    }

    /// Returns the value of each bank.
    pub fn banks(&self) -> &[Digest] {
        &self.0
    }

    /// Returns a bank in the form of a TPM's `pcrs` file, for `evmctl ima_measurement --pcrs`. All registers
    /// except PCR 10 are zeros.
    pub fn pcrs(value: &Digest) -> String {
        let zeros = Digest::filled(value.algorithm(), 0).hex();
        let hex = |register| if register == PCR { value.hex() } else { zeros.clone() };
        (0..PCR_COUNT)
            .map(|register| format!("PCR-{register:02}: {}\n", hex(register).to_uppercase()))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_have_the_kernels_format() {
        let digest = Algorithm::Sha256.digest(b"abc");
        let entry = Entry::measured(Template::ImaNg, &digest, b"/a b", None);
        let mut data = Vec::new();
        data.extend_from_slice(&40u32.to_le_bytes());
        data.extend_from_slice(b"sha256:\0");
        data.extend_from_slice(digest.bytes());
        data.extend_from_slice(&5u32.to_le_bytes());
        data.extend_from_slice(b"/a_b\0");
        assert_eq!(entry.data(), data);
        let mut binary = 10u32.to_le_bytes().to_vec();
        binary.extend_from_slice(Algorithm::Sha1.digest(&data).bytes());
        binary.extend_from_slice(&6u32.to_le_bytes());
        binary.extend_from_slice(b"ima-ng");
        binary.extend_from_slice(&(data.len() as u32).to_le_bytes());
        binary.extend_from_slice(&data);
        assert_eq!(entry.encode(), binary);
        let sha1 = Algorithm::Sha1.digest(&data).hex();
        let line = format!("10 {sha1} ima-ng sha256:{} /a_b\n", digest.hex());
        assert_eq!(entry.ascii(), line.as_bytes());
        let signed = Entry::measured(Template::ImaSig, &digest, b"/a", Some(&[3, 2, 4]));
        assert!(signed.ascii().ends_with(b" /a 030204\n"));
        let unsigned = Entry::measured(Template::ImaSig, &digest, b"/a", None);
        assert!(unsigned.ascii().ends_with(b" /a \n"), "the kernel writes the separator in any case");
    }

    #[test]
    fn violations_extend_the_banks_by_ones() {
        let entry = Entry::violation(Template::ImaNg, Algorithm::Sha256, b"/x");
        assert_eq!(entry.encode()[4..24], [0; 20]);
        assert!(entry.fields().digest.iter().all(|&byte| byte == 0));
        let mut aggregates = Aggregates::default();
        aggregates.extend(&entry);
        for value in aggregates.banks() {
            let len = value.algorithm().digest_len();
            assert_eq!(*value, value.algorithm().digest(&[vec![0; len], vec![0xff; len]].concat()));
        }
    }

    #[test]
    fn a_pcrs_file_has_all_registers_in_order() {
        let mut aggregates = Aggregates::default();
        aggregates.extend(&Entry::boot_aggregate(Template::ImaNg, Algorithm::Sha256));
        let text = Aggregates::pcrs(&aggregates.banks()[0]);
        assert_eq!(text.lines().count(), 24);
        assert!(text.lines().nth(9).unwrap().ends_with(&"0".repeat(40)));
        let line = text.lines().nth(10).unwrap();
        assert_eq!(line, format!("PCR-10: {}", aggregates.banks()[0].hex().to_uppercase()));
    }
}
