//! Circles of a directed graph: its strongly connected components (Tarjan, 1972).

/// Components of more than one node. `graph[n]` are the nodes that `n` points to.
pub fn circles(graph: &[Vec<usize>]) -> Vec<Vec<usize>> {
    let mut search = Search {
        graph,
        next: 0,
        index: vec![usize::MAX; graph.len()],
        low: vec![usize::MAX; graph.len()],
        on_stack: vec![false; graph.len()],
        stack: Vec::new(),
        components: Vec::new(),
    };
    for node in 0..graph.len() {
        if search.index[node] == usize::MAX {
            search.visit(node);
        }
    }
    search.components.retain(|component| component.len() > 1);
    search.components
}

/// Edges between nodes of `circle`.
pub fn edges_within<'a>(graph: &'a [Vec<usize>], circle: &'a [usize]) -> impl Iterator<Item = (usize, usize)> + 'a {
    let inside = |to: &&usize| circle.contains(to);
    circle.iter().flat_map(move |from| graph[*from].iter().filter(inside).map(|to| (*from, *to)))
}

struct Search<'a> {
    graph: &'a [Vec<usize>],
    next: usize,
    index: Vec<usize>,
    low: Vec<usize>,
    on_stack: Vec<bool>,
    stack: Vec<usize>,
    components: Vec<Vec<usize>>,
}

impl Search<'_> {
    fn visit(&mut self, node: usize) {
        (self.index[node], self.low[node]) = (self.next, self.next);
        self.next += 1;
        self.stack.push(node);
        self.on_stack[node] = true;
        for to in &self.graph[node] {
            if self.index[*to] == usize::MAX {
                self.visit(*to);
                self.low[node] = self.low[node].min(self.low[*to]);
            } else if self.on_stack[*to] {
                self.low[node] = self.low[node].min(self.index[*to]);
            }
        }
        if self.low[node] == self.index[node] {
            let mut component = Vec::new();
            while let Some(of) = self.stack.pop() {
                self.on_stack[of] = false;
                component.push(of);
                if of == node {
                    break;
                }
            }
            component.sort_unstable();
            self.components.push(component);
        }
    }
}

#[test]
fn circles_are_the_components_of_more_than_one_node() {
    let graph = [vec![1], vec![2], vec![0, 3], vec![4], vec![3], vec![0]];
    assert_eq!(circles(&graph), [vec![3, 4], vec![0, 1, 2]]);
    assert_eq!(edges_within(&graph, &[3, 4]).collect::<Vec<_>>(), [(3, 4), (4, 3)]);
    assert!(circles(&[vec![1], vec![2], vec![]]).is_empty());
}
