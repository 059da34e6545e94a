//! The measurement list, as `binary_runtime_measurements` and `ascii_runtime_measurements` of the kernel's
//! securityfs have it (Documentation/security/IMA-templates.rst; ima_fs.c for the order of the fields).
//!
//! An entry in binary, numbers little-endian (the kernel's `ima_canonical_fmt`):
//!
//! ```text
//! pcr             u32, always 10
//! template digest 20 bytes, SHA-1 over the template data; zeros: a violation
//! name length     u32
//! name            "ima-ng" or "ima-sig", without a NUL
//! data length     u32
//! data            fields, each a u32 length and so many bytes:
//!   d-ng          algorithm, ':', NUL, digest of the file
//!   n-ng          name and NUL; spaces are underscores
//!   sig           `ima-sig` only: `security.ima` if that is a signature, else nothing
//! ```
//!
//! A template digest is taken over the fields, their lengths included, with the algorithm of each bank. Banks
//! are extended by it as a TPM does: new = H(old, digest). A violation's template data has a digest of zeros,
//! and the banks are extended by bytes of 0xff, so that no list without the violation fits them.

use crate::digest::{Algorithm, Digest, Hasher, hex};

/// The register that measurements go to (CONFIG_IMA_MEASURE_PCR_IDX).
pub const PCR: u32 = 10;
/// Of a TPM's bank.
const PCR_COUNT: u32 = 24;

/// The banks that are kept.
pub const BANKS: [Algorithm; 3] = [Algorithm::Sha1, Algorithm::Sha256, Algorithm::Sha512];

/// What the first entry is called.
pub const BOOT_AGGREGATE: &[u8] = b"boot_aggregate";

/// What an entry is made of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Template {
    /// Digest and name.
    #[default]
    ImaNg,
    /// Digest, name and signature.
    ImaSig,
}

impl Template {
    /// The kernel's name of it.
    pub fn name(self) -> &'static str {
        match self {
            Template::ImaNg => "ima-ng",
            Template::ImaSig => "ima-sig",
        }
    }

    /// By its name.
    pub fn by_name(name: &[u8]) -> Option<Self> {
        [Template::ImaNg, Template::ImaSig].into_iter().find(|template| template.name().as_bytes() == name)
    }
}

/// One entry.
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
    /// A file of this name had contents of this digest. The signature is what `security.ima` holds, if that
    /// is one.
    pub fn measured(template: Template, digest: &Digest, name: &[u8], signature: Option<&[u8]>) -> Self {
        Self::build(template, digest, name, signature, false)
    }

    /// What a file of this name contained while it was used nobody can say.
    pub fn violation(template: Template, algorithm: Algorithm, name: &[u8]) -> Self {
        Self::build(template, &Digest::filled(algorithm, 0), name, None, true)
    }

    /// What stands for the boot where there is no TPM: a digest of zeros (`ima_add_boot_aggregate`).
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
        // A field of the ascii list ends at a space (ima_write_template_field_data).
        let name: Vec<u8> = name.iter().map(|&byte| if byte == b' ' { b'_' } else { byte }).collect();
        put_field(&mut data, &[&name, b"\0"]);
        if template == Template::ImaSig {
            put_field(&mut data, &[signature.unwrap_or_default()]);
        }
        Self { template, violation, data }
    }

    /// What a reader found: data that [`fields`] could take apart.
    pub(crate) fn found(template: Template, violation: bool, data: Vec<u8>) -> Option<Self> {
        fields(template, &data)?;
        Some(Self { template, violation, data })
    }

    /// What it is made of.
    pub fn template(&self) -> Template {
        self.template
    }

    /// Whether it says that nothing is known.
    pub fn is_violation(&self) -> bool {
        self.violation
    }

    /// What is hashed.
    pub fn data(&self) -> &[u8] {
        &self.data
    }

    /// The parts of it.
    pub fn fields(&self) -> Fields<'_> {
        fields(self.template, &self.data).expect("an entry is built or found with the fields of its template")
    }

    /// The digest that the bank of this algorithm is extended by.
    pub fn template_digest(&self, bank: Algorithm) -> Digest {
        if self.violation { Digest::filled(bank, 0xff) } else { bank.digest(&self.data) }
    }

    /// The one of SHA-1 as the list shows it.
    fn shown_digest(&self) -> Digest {
        match self.violation {
            true => Digest::filled(Algorithm::Sha1, 0),
            false => Algorithm::Sha1.digest(&self.data),
        }
    }

    /// The entry in binary.
    pub fn encode(&self) -> Vec<u8> {
        let name = self.template.name().as_bytes();
        let mut out = Vec::with_capacity(40 + self.data.len());
        out.extend_from_slice(&PCR.to_le_bytes());
        out.extend_from_slice(self.shown_digest().bytes());
        put_field(&mut out, &[name]);
        put_field(&mut out, &[&self.data]);
        out
    }

    /// The entry as a line of the ascii list, with its end. Names are bytes: so is the line.
    pub fn ascii(&self) -> Vec<u8> {
        let fields = self.fields();
        let digest = hex(fields.digest);
        let head = format!("{PCR:2} {} {} ", self.shown_digest().hex(), self.template.name());
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

/// The parts of an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fields<'a> {
    /// The name of the algorithm that the file was hashed with.
    pub algorithm: &'a [u8],
    /// The digest of the file.
    pub digest: &'a [u8],
    /// The name, without its NUL.
    pub name: &'a [u8],
    /// The signature, where the template has a place for one.
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

/// PCR 10 of each bank, in software: all zeros at first.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Aggregates([Digest; BANKS.len()]);

impl Default for Aggregates {
    fn default() -> Self {
        Self(BANKS.map(|bank| Digest::filled(bank, 0)))
    }
}

impl Aggregates {
    /// The list has grown by this.
    pub fn extend(&mut self, entry: &Entry) {
        for value in &mut self.0 {
            let mut hasher = Hasher::new(value.algorithm());
            hasher.update(value.bytes());
            hasher.update(entry.template_digest(value.algorithm()).bytes());
            *value = hasher.finish();
        }
    }

    /// The value of each bank.
    pub fn banks(&self) -> &[Digest] {
        &self.0
    }

    /// A bank in the form of a TPM's `pcrs` file, which `evmctl ima_measurement --pcrs` reads: all registers,
    /// of which ours alone is not zero.
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
    fn an_entry_is_what_the_kernel_would_write() {
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
        assert!(unsigned.ascii().ends_with(b" /a \n"), "the kernel leaves the space");
    }

    #[test]
    fn violations_extend_by_what_no_list_gives() {
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
    fn registers_are_listed_in_order() {
        let mut aggregates = Aggregates::default();
        aggregates.extend(&Entry::boot_aggregate(Template::ImaNg, Algorithm::Sha256));
        let text = Aggregates::pcrs(&aggregates.banks()[0]);
        assert_eq!(text.lines().count(), 24);
        assert!(text.lines().nth(9).unwrap().ends_with(&"0".repeat(40)));
        let line = text.lines().nth(10).unwrap();
        assert_eq!(line, format!("PCR-10: {}", aggregates.banks()[0].hex().to_uppercase()));
    }
}
