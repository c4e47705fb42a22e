package guest

import (
	"archive/tar"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// If this fails, a change of only an attribute is lost that comes so soon after a look that no time tells of it.
func TestAttrsInSum(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "f")
	if err := os.WriteFile(file, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	s := &server{cfg: ServerConfig{Roots: []string{dir}}, sameID: true}
	for _, path := range []string{dir, file} {
		var st syscall.Stat_t
		if err := syscall.Stat(path, &st); err != nil {
			t.Fatal(err)
		}
		it := &item{path: strings.TrimPrefix(path, "/"), mark: markOf(&st)}
		sum := func() [32]byte {
			t.Helper()
			sum, err := s.sum(it)
			if err != nil {
				t.Fatal(err)
			}
			return sum
		}
		before := sum()
		if sum() != before {
			t.Errorf("%s: two sums of the same", path)
		}
		seen := map[[32]byte]bool{before: true}
		for _, value := range []string{"", "1", "2"} {
			if err := syscall.Setxattr(path, "user.x", []byte(value), 0); err == syscall.EOPNOTSUPP {
				t.Skipf("files of %s have no attributes", dir)
			} else if err != nil {
				t.Fatal(err)
			}
			if after := sum(); seen[after] {
				t.Errorf("%s: the same with the attribute %q", path, value)
			} else {
				seen[after] = true
			}
		}
		if err := syscall.Removexattr(path, "user.x"); err != nil || sum() != before {
			t.Errorf("%s: not as before without the attribute, %v", path, err)
		}
	}
}

// If this fails, a file with more attributes than a tar holds keeps a workspace from being saved, or an archive
// has the guest hold any number.
func TestAttrsBounded(t *testing.T) {
	for _, c := range []struct {
		n, size int
		fits    bool
	}{{1, maxSavedAttrBytes - attrCost, true}, {1, maxSavedAttrBytes, false}, {maxSavedAttrs, 10,
		true}, {maxSavedAttrs + 1, 10, false}} {
		room := maxSavedAttrBytes
		for i := range c.n {
			room = fit(room, i, c.size)
		}
		if (room >= 0) != c.fits {
			t.Errorf("%d attributes of %d bytes: room for %d more", c.n, c.size, room)
		}
	}
	h := &tar.Header{Name: "f", Typeflag: tar.TypeReg, PAXRecords: map[string]string{attrRecord + "user.a": "1",
		attrRecord + "security.capability": "1", "user.b": "1"}}
	if attrs, err := headerAttrs(h); err != nil || len(attrs) != 1 || attrs["user.a"] != "1" {
		t.Errorf("of a header: %v, %v", attrs, err)
	}
	h.PAXRecords[attrRecord+"user.c"] = strings.Repeat("x", maxSavedAttrBytes)
	if attrs, err := headerAttrs(h); err == nil {
		t.Errorf("of a header with too much: %d", len(attrs))
	}
}
