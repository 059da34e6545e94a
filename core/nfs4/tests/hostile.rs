//! Arbitrary bytes are decoded or refused, and decoded values round-trip.

use ivers_nfs4::callback::{CbCompoundArgs, CbCompoundRes};
use ivers_nfs4::compound::{CompoundArgs, CompoundHeader, CompoundRes, Next, Operations};
use ivers_nfs4::ops::{Op, OpResult, number};
use ivers_nfs4::record::Records;
use ivers_nfs4::rpc::{CallHeader, Reply};
use ivers_nfs4::status::NfsStat;
use ivers_nfs4::types::{Bitmap, Opaque};
use ivers_nfs4::xdr::{Decoder, Encoder, Xdr};
use proptest::prelude::*;

/// Words that are often small, as counts and discriminants are. Fully random words are mostly refused.
fn words() -> impl Strategy<Value = Vec<u8>> {
    let word = prop_oneof![4 => 0u32..4, 2 => 0u32..80, 1 => any::<u32>(), 1 => 10_000u32..10_100];
    prop::collection::vec(word, 0..64)
        .prop_map(|words| words.into_iter().flat_map(u32::to_be_bytes).collect())
}

fn round_trip<T: Xdr + PartialEq + std::fmt::Debug>(bytes: &[u8]) -> Result<(), TestCaseError> {
    if let Ok(value) = T::take(&mut Decoder::new(bytes)) {
        let encoded = value.to_bytes();
        // A bitmap may lose trailing zero words. Nothing else changes its length.
        prop_assert!(encoded.len() <= bytes.len(), "{value:?}");
        prop_assert_eq!(T::from_bytes(&encoded), Ok(value));
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, ..ProptestConfig::default() })]

    #[test]
    fn operations(bytes in words(), minor in 0u32..3, op in 0u32..80) {
        if let Ok(Some(found)) = Op::take_body(minor, op, &mut Decoder::new(&bytes)) {
            prop_assert_eq!(found.number(), op);
            let mut encoder = Encoder::default();
            found.put(&mut encoder);
            let mut decoder = Decoder::new(encoder.as_bytes());
            prop_assert_eq!(decoder.word(), Ok(op));
            prop_assert_eq!(Op::take_body(minor, op, &mut decoder), Ok(Some(found)));
            prop_assert!(decoder.finish().is_ok());
        }
        let result = [&op.to_be_bytes()[..], &bytes].concat();
        round_trip::<OpResult>(&result)?;
    }

    #[test]
    fn messages(bytes in words()) {
        round_trip::<CompoundArgs>(&bytes)?;
        round_trip::<CompoundRes>(&bytes)?;
        round_trip::<CbCompoundArgs>(&bytes)?;
        round_trip::<CbCompoundRes>(&bytes)?;
        let _ = CallHeader::take(&mut Decoder::new(&bytes));
        let _ = Reply::take(&mut Decoder::new(&bytes));
        let mut records = Records::new(64);
        let mut rest = &bytes[..];
        while let Ok(Some(message)) = records.feed(&mut rest) {
            prop_assert!(message.len() <= 64);
        }
    }
}

#[test]
fn a_request_is_decoded_up_to_the_first_invalid_operation() {
    let header = CompoundHeader { tag: b"tag".to_vec(), minor_version: 2 };
    let ops = vec![
        Op::PutFh(Opaque(b"handle".to_vec())),
        Op::GetAttr(Bitmap::of([3, 4])),
        Op::Unsupported(number::LAYOUTGET),
    ];
    let bytes = CompoundArgs { header: header.clone(), ops: ops.clone() }.to_bytes();
    let mut decoder = Decoder::new(&bytes);
    assert_eq!(CompoundHeader::take(&mut decoder), Ok(header));
    let mut operations = Operations::take(decoder, 2).unwrap();
    assert_eq!((operations.left(), operations.peek()), (3, Some(number::PUTFH)));
    for op in ops {
        assert_eq!(operations.next_op(), Some(Next::Op(op)));
    }
    assert_eq!(operations.next_op(), None);

    let words = |words: &[u32]| words.iter().flat_map(|word| word.to_be_bytes()).collect::<Vec<_>>();
    let next = |minor: u32, list: &[u32]| {
        let bytes = words(list);
        Operations::take(Decoder::new(&bytes), minor).unwrap().next_op().unwrap()
    };
    assert_eq!(next(2, &[1, 2]), Next::Illegal);
    assert_eq!(next(2, &[1, 99]), Next::Illegal);
    assert_eq!(next(2, &[1, number::PUTFH, 200]), Next::BadXdr(number::PUTFH));
    assert!(Operations::take(Decoder::new(&words(&[2, 10])), 2).is_err(), "more operations than bytes");
    // The minor version determines which operations exist, whatever follows the number.
    assert_eq!(next(0, &[1, number::SEQUENCE]), Next::Illegal);
    assert_eq!(next(1, &[1, number::SEEK]), Next::Illegal);
    assert_eq!(next(0, &[1, number::RENEW, 0, 7]), Next::Op(Op::Renew(7)));
    assert_eq!(next(1, &[1, number::RENEW, 0, 7]), Next::Op(Op::Unsupported(number::RENEW)));
}

#[test]
fn every_failure_has_the_form_of_its_operation() {
    for op in 0..80 {
        let result = OpResult::failure(op, NfsStat::Delay);
        assert_eq!((result.number(), result.status()), (op, NfsStat::Delay));
        assert_eq!(OpResult::from_bytes(&result.to_bytes()), Ok(result));
    }
    // SETATTR lists the attributes that it set even on failure.
    assert_eq!(OpResult::failure(number::SETATTR, NfsStat::Perm).to_bytes().len(), 12);
    assert_eq!(
        OpResult::failure(number::ILLEGAL, NfsStat::OpIllegal).to_bytes(),
        [0, 0, 39, 60, 0, 0, 39, 60]
    );
}
