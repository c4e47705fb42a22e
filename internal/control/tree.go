package control

import (
	"path"
	"slices"
	"strings"
)

// tree is what a workspace has, while deltas are merged: each part of a path once, however many files are below
// it. Paths of 4 KiB would take a hundred times as much.
type tree struct {
	nodes []node // the root, then in the order they were seen; one that is cut off stays
	index map[place]int32
	count int // entries that are there
	grow  func(bytes int) error
}

// place is a name within a directory.
type place struct {
	in   int32
	name string
}

type node struct {
	in, first, next int32 // the directory, its first member, the next member of the same; 0 = none
	name            string
	source
	there bool // there is an entry; else it is on the way to some
}

// nodeBytes is what a node takes besides its name, in the slice and in the index.
const nodeBytes = 160

// newTree returns a tree that says how much more memory it takes, and stops where that is refused.
func newTree(grow func(bytes int) error) *tree {
	return &tree{nodes: make([]node, 1), index: map[place]int32{}, grow: grow}
}

// find returns the node of a clean path, 0 if there is none.
func (t *tree) find(name string) int32 {
	var at int32
	for part := range strings.SplitSeq(name, "/") {
		next, ok := t.index[place{at, part}]
		if !ok {
			return 0
		}
		at = next
	}
	return at
}

// put makes a path mean an entry. What is below stays.
func (t *tree) put(name string, s source) (int32, error) {
	var at int32
	for part := range strings.SplitSeq(name, "/") {
		next, ok := t.index[place{at, part}]
		if !ok {
			if err := t.grow(nodeBytes + len(part)); err != nil {
				return 0, err
			}
			next = int32(len(t.nodes))
			part = strings.Clone(part) // of a header of up to 1 MiB, which would stay
			t.nodes = append(t.nodes, node{in: at, next: t.nodes[at].first, name: part})
			t.nodes[at].first, t.index[place{at, part}] = next, next
		}
		at = next
	}
	n := &t.nodes[at]
	if !n.there {
		t.count++
	}
	n.there, n.source = true, s
	return at, nil
}

// clear removes what is below a node, and only looks at that.
func (t *tree) clear(at int32) {
	todo := []int32{at}
	for len(todo) > 0 {
		from := todo[len(todo)-1]
		todo = todo[:len(todo)-1]
		for m := t.nodes[from].first; m != 0; m = t.nodes[m].next {
			t.drop(m)
			delete(t.index, place{from, t.nodes[m].name})
			todo = append(todo, m)
		}
		t.nodes[from].first = 0
	}
}

// drop says that there is no entry at a node.
func (t *tree) drop(at int32) {
	if t.nodes[at].there {
		t.count--
	}
	t.nodes[at].there = false
}

// path is the name of a node.
func (t *tree) path(at int32) string {
	var parts []string
	for ; at != 0; at = t.nodes[at].in {
		parts = append(parts, t.nodes[at].name)
	}
	slices.Reverse(parts)
	return path.Join(parts...)
}

// all calls visit with every node that has an entry.
func (t *tree) all(visit func(at int32, n *node)) {
	for i := range t.nodes {
		if t.nodes[i].there {
			visit(int32(i), &t.nodes[i])
		}
	}
}

// paths are the names of some nodes.
func (t *tree) paths(nodes []int32) []string {
	out := make([]string, len(nodes))
	for i, at := range nodes {
		out[i] = t.path(at)
	}
	return out
}
