//! The results of a tower.

use super::processor::WHAT;
use crate::runtime::scratch::grow;
use thermocline_base::error::Result;
use thermocline_model::PictureGrid;

/// A picture as embeddings of a text model.
#[derive(Debug, Clone, PartialEq)]
pub struct PictureEmbeddings {
    /// Rows and columns of the picture's tokens.
    pub grid: PictureGrid,
    /// `[grid.tokens(), d_model]`, row by row of the grid.
    pub embeddings: Vec<f32>,
    /// For each of the text model's first layers, `[grid.tokens(), d_model]`: added to the residual
    /// stream after the layer. Empty for towers without deepstack.
    pub deepstack: Vec<Vec<f32>>,
}

/// The inputs of the text model for a picture, or for a part of a sliced picture.
#[derive(Debug, PartialEq)]
pub(crate) struct PartEmbeddings {
    /// `[tokens, d_model]`
    pub embeddings: Vec<f32>,
    /// Additions to its first layers, `[tokens, d_model]` each. No tower with slices has additions.
    pub deepstack: Vec<Vec<f32>>,
}

impl PartEmbeddings {
    /// Joins the parts of a picture, one after another. A single part is moved, not copied.
    ///
    /// # Errors
    /// [`Error::Memory`](thermocline_base::error::Error::Memory) without memory for the copy.
    pub fn joined(mut parts: Vec<Self>) -> Result<Self> {
        if parts.len() == 1 {
            return Ok(parts.remove(0));
        }
        let mut embeddings = Vec::new();
        let total = parts.iter().map(|part| part.embeddings.len()).sum();
        let joined = grow(&mut embeddings, Some(total), WHAT)?;
        let values = parts.iter().flat_map(|part| &part.embeddings);
        joined.iter_mut().zip(values).for_each(|(to, from)| *to = *from);
        Ok(PartEmbeddings { embeddings, deepstack: Vec::new() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_follow_one_another_and_a_single_part_is_moved() {
        let part = |values: &[f32]| PartEmbeddings { embeddings: values.to_vec(), deepstack: Vec::new() };
        let joined = PartEmbeddings::joined(vec![part(&[1.0, 2.0]), part(&[3.0]), part(&[4.0, 5.0])]).unwrap();
        assert_eq!(joined, part(&[1.0, 2.0, 3.0, 4.0, 5.0]));
        let single = PartEmbeddings { embeddings: vec![1.0; 3], deepstack: vec![vec![2.0; 3]] };
        let place = single.embeddings.as_ptr();
        let joined = PartEmbeddings::joined(vec![single]).unwrap();
        assert_eq!((joined.embeddings.as_ptr(), &joined.deepstack[..]), (place, &[vec![2.0; 3]][..]));
    }
}
