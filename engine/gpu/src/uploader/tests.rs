//! Tests of uploads.

use super::*;
use crate::{FaultPoint, Faults, GpuOptions, ReadbackRing};
use thermocline_formats::{
    format::{Bytes, RecordPart},
    quant::TensorType,
};

/// A matrix larger than the heap must arrive in loads that fit the heap.
#[test]
fn uploads_become_smaller_where_the_mapped_heap_is_full() {
    const ROWS: usize = 600;
    let data = Bytes::new((0..ROWS * 256 * 4).map(|at| (at / 4 % 251) as u8 & 0x3f).collect::<Vec<_>>());
    let weights = Matrix::new(TensorType::F32, ROWS, 256, data).unwrap();
    let upload = |heap: Option<u64>| {
        let faults = Faults(heap.map(|bytes| (FaultPoint::MappedHeap, bytes)));
        let options = GpuOptions { faults, ..GpuOptions::first() };
        let gpu = Gpu::open(&options).unwrap();
        let mut go_on = |_, _| ControlFlow::Continue(());
        let mut uploader = Uploader::with_loads(&gpu, LOAD, &mut go_on)?;
        let load = uploader.ring.bytes();
        let matrix = uploader.matrix(Purpose::Ffn, "test", &[&weights])?;
        uploader.finish()?;
        let (part, mut down) = (&matrix.parts()[0], ReadbackRing::new(&gpu, 1, matrix.bytes())?);
        let all = [(part.buffer(), 0, part.buffer().bytes())];
        Ok::<_, Error>((load, down.read(Recorder::new(&gpu), &all, || (), <[u8]>::to_vec)?))
    };
    let (whole, wanted) = upload(None).unwrap();
    assert_eq!(whole, LOAD);
    for (heap, load) in [(2 * LOAD, LOAD), (LOAD, LOAD / 2), (200 << 10, 64 << 10), (2 * LEAST, LEAST)] {
        let (loads, got) = upload(Some(heap)).unwrap();
        assert_eq!(loads, load, "loads where the heap has {heap}");
        assert!(got == wanted, "bytes where the heap has {heap}");
    }
    let refused = upload(Some(2 * LEAST - 16)).unwrap_err();
    assert!(matches!(refused, Error::Memory { what: "upload", wanted, .. } if wanted == LEAST), "{refused}");
}
/// Rows that lie in records arrive like the same rows without bytes between them.
#[test]
fn rows_of_records_arrive_as_a_whole_matrix() {
    const ROWS: usize = 37;
    let gpu = Gpu::open(&GpuOptions::first()).unwrap();
    let upload = |weights: &Matrix| {
        let mut go_on = |_, _| ControlFlow::Continue(());
        let mut uploader = Uploader::new(&gpu, &mut go_on)?;
        let matrix = uploader.matrix(Purpose::Ffn, "test", &[weights])?;
        assert_eq!(uploader.done(), weights.byte_len() as u64, "bytes of the rows alone");
        uploader.finish()?;
        let (part, mut down) = (&matrix.parts()[0], ReadbackRing::new(&gpu, 1, matrix.bytes())?);
        down.read(Recorder::new(&gpu), &[(part.buffer(), 0, part.buffer().bytes())], || (), <[u8]>::to_vec)
    };
    for ty in [TensorType::F32, TensorType::F16, TensorType::Q4_0, TensorType::Q4_K] {
        let row_bytes = ty.row_bytes(256).unwrap();
        let part = RecordPart { record: 2 * row_bytes + 96, start: row_bytes + 32 };
        // Small bytes are finite floats.
        let records: Vec<u8> = (0..ROWS * part.record).map(|at| (at % 53) as u8).collect();
        let rows = records.chunks_exact(part.record).flat_map(|record| &record[part.start..][..row_bytes]);
        let packed = Matrix::new(ty, ROWS, 256, Bytes::new(rows.copied().collect::<Vec<u8>>())).unwrap();
        let strided = Matrix::in_records(ty, 256, part, &Bytes::new(records)).unwrap();
        assert!(!strided.is_contiguous() && strided.rows() == ROWS);
        assert!(upload(&strided).unwrap() == upload(&packed).unwrap(), "{ty}");
    }
}
