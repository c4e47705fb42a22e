package audit

import (
	"errors"

	"golang.org/x/mod/sumdb/tlog"
)

// Tree is the right edge of a Merkle tree: all that appending needs. The zero Tree is empty. It is a value: a
// copy is a fork.
type Tree struct {
	size int64
	edge [63]tlog.Hash // edge[l] is the complete subtree of 2^l leaves, where bit l of size is set
}

// Size is how many leaves there are.
func (t *Tree) Size() int64 { return t.size }

// Add appends a leaf, and returns the hashes to keep with its record: the leaf's, then those of the subtrees it
// completes.
func (t *Tree) Add(leaf tlog.Hash) []byte {
	out := append(make([]byte, 0, 2*HashSize), leaf[:]...)
	h, level := leaf, 0
	for ; t.size>>level&1 == 1; level++ {
		h = tlog.NodeHash(t.edge[level], h)
		out = append(out, h[:]...)
	}
	t.edge[level] = h
	t.size++
	return out
}

// Root is the hash of the whole tree.
func (t *Tree) Root() tlog.Hash {
	if t.size == 0 {
		h, _ := tlog.TreeHash(0, nil) // of nothing; it reads nothing
		return h
	}
	var root tlog.Hash
	first := true
	for level := range t.edge {
		switch {
		case t.size>>level&1 == 0:
		case first:
			root, first = t.edge[level], false
		default:
			root = tlog.NodeHash(t.edge[level], root)
		}
	}
	return root
}

// TreeOf reads the edge of the tree of the first size records. hashes returns Entry.Hashes of a record by its number.
func TreeOf(size int64, hashes func(num int64) ([]byte, error)) (Tree, error) {
	t := Tree{size: size}
	for level := range t.edge {
		if size>>level&1 == 0 {
			continue
		}
		b, err := hashes(size >> level << level)
		if err != nil {
			return t, err
		}
		if len(b) < (level+1)*HashSize {
			return t, errors.New("a record lacks hashes")
		}
		copy(t.edge[level][:], b[level*HashSize:])
	}
	return t, nil
}
