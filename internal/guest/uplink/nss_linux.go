package uplink

import (
	"crypto/sha1"
	"encoding/binary"
	"encoding/pem"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
)

// Chromium and other programs that use NSS trust no file, only the database in ~/.pki/nssdb, which they must
// be able to write. That of each user is a link from the home directory to a directory here, so no checkpoint
// has it. A home directory that brings its own database keeps it.
const (
	NSSDir     = TrustDir + "/nssdb"      // of the tool
	NSSRootDir = TrustDir + "/nssdb-root" // of root
	// NSSLink is where programs look, in the home directory.
	NSSLink = ".pki/nssdb"
	// Certificate is the gateway's alone, for Firefox, whose policy names it.
	Certificate = TrustDir + "/gateway.pem"
)

// makeNSS makes the directories in dir, which is TrustDir.
func makeNSS(dir string, uid, gid int) error {
	for path, owner := range map[string][2]int{NSSDir: {uid, gid}, NSSRootDir: {os.Getuid(), os.Getgid()}} {
		path = filepath.Join(dir, filepath.Base(path))
		err := os.Mkdir(path, 0o700)
		if err == nil && owner[0] != os.Getuid() {
			err = os.Lchown(path, owner[0], owner[1])
		}
		if err != nil {
			return fmt.Errorf("making the directory of NSS: %w", err)
		}
	}
	return nil
}

// writeNSS writes both databases of a certificate in dir, which is TrustDir.
func writeNSS(dir string, ca []byte) error {
	block, _ := pem.Decode(ca)
	if block == nil {
		return errNoPEM
	}
	certs, err := nssCertificates(block.Bytes)
	if err != nil {
		return fmt.Errorf("writing the database of NSS: %w", err)
	}
	keys, err := sqliteFile(
		sqliteTable{name: "nssPrivate", columns: "id INTEGER PRIMARY KEY, " + nssColumns},
		sqliteTable{name: "metaData", columns: "id PRIMARY KEY ON CONFLICT REPLACE, item1, item2", keyed: true})
	if err != nil {
		return fmt.Errorf("writing the database of NSS: %w", err)
	}
	for _, base := range []string{filepath.Base(NSSDir), filepath.Base(NSSRootDir)} {
		err := replaceIn(filepath.Join(dir, base), map[string][]byte{"cert9.db": certs, "key4.db": keys})
		if err != nil {
			return fmt.Errorf("writing the database of NSS: %w", err)
		}
	}
	return nil
}

// replaceIn writes files that belong to the directory's owner, who may write there and have put anything in
// their place: no link is followed.
func replaceIn(dir string, files map[string][]byte) error {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer root.Close()
	fi, err := root.Stat(".")
	if err != nil {
		return err
	}
	owner := fi.Sys().(*syscall.Stat_t)
	for name, data := range files {
		const tmp = ".new"
		if err := root.RemoveAll(tmp); err != nil {
			return err
		}
		f, err := root.OpenFile(tmp, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
		if err != nil {
			return err
		}
		_, err = f.Write(data)
		if err == nil && int(owner.Uid) != os.Getuid() {
			err = f.Chown(int(owner.Uid), int(owner.Gid))
		}
		if err = errors.Join(err, f.Close()); err != nil {
			return err
		}
		if err := root.RemoveAll(name); err != nil { // which may be a directory
			return err
		}
		if err := root.Rename(tmp, name); err != nil {
			return err
		}
	}
	return nil
}

// nssColumns are the attributes of PKCS #11 objects that NSS knows, those of nssCertificates first. Without
// the others it could store nothing.
const nssColumns = "a0, a1, a2, a3, a11, a80, a81, a82, a101, ace536358, ace5363b4, a10, a12, a83, a84, a85, a86, a87, " +
	"a88, a89, a8a, a8b, a90, a100, a102, a103, a104, a105, a106, a107, a108, a109, a10a, a10b, a10c, " +
	"a110, a111, a120, a121, a122, a123, a124, a125, a126, a127, a128, a129, a130, a131, a132, a133, " +
	"a134, a160, a161, a162, a163, a164, a165, a166, a170, a180, a181, a200, a201, a202, a210, a300, " +
	"a301, a302, a400, a401, a402, a403, a404, a405, a406, a480, a481, a482, a500, a501, a502, a503, " +
	"a40000211, a40000212, a80000001, ace534351, ace534352, ace534353, ace534354, ace534355, ace534356, " +
	"ace534357, ace534358, ace534364, ace534365, ace534366, ace534367, ace534368, ace534369, ace534373, " +
	"ace534374, ace536351, ace536352, ace536353, ace536354, ace536355, ace536356, ace536357, ace536359, " +
	"ace53635a, ace53635b, ace53635c, ace53635d, ace53635e, ace53635f, ace536360, ace5363b5, ad5a0db00"

// nssCertificates is a cert9.db with a certificate, and the object that makes it one that vouches for
// servers. The database has no password, and the objects no signature: NSS asks for those only where there is
// a password.
func nssCertificates(der []byte) ([]byte, error) {
	serial, issuer, subject, err := certificateNames(der)
	if err != nil {
		return nil, err
	}
	word := func(v uint32) []byte { return binary.BigEndian.AppendUint32(nil, v) }
	const certificate, x509, trust, delegator = 1, 0, 0xce534353, 0xce534352
	yes, no, hash := []byte{1}, []byte{0}, sha1.Sum(der)
	// Class, token, private, label, value, kind of certificate, issuer, serial number, subject, trust for
	// servers, hash.
	return sqliteFile(sqliteTable{name: "nssPublic", columns: "id INTEGER PRIMARY KEY, " + nssColumns, rows: [][]any{
		{nil, word(certificate), yes, no, []byte("Outboard gateway"), der, word(x509), issuer, serial, subject},
		{nil, word(trust), yes, no, nil, nil, nil, issuer, serial, nil, word(delegator), hash[:]},
	}})
}

var errNotCertificate = errors.New("the certificate to trust is not one in DER form")

// certificateNames returns what names a certificate, each with its tag and length.
func certificateNames(der []byte) (serial, issuer, subject []byte, err error) {
	_, body, _, err := derElement(der)
	if err == nil {
		_, body, _, err = derElement(body)
	}
	var fields [6][]byte // serial number, algorithm, issuer, validity, subject, key
	for i := 0; i < len(fields) && err == nil; {
		var whole, rest []byte
		// before it may be the version
		if whole, _, rest, err = derElement(body); err == nil && (i > 0 || whole[0] == 0x02) {
			fields[i] = whole
			i++
		}
		body = rest
	}
	return fields[0], fields[2], fields[4], err
}

// derElement splits the first element off: all of it, its content, and what follows.
func derElement(b []byte) (whole, content, rest []byte, err error) {
	if len(b) < 2 {
		return nil, nil, nil, errNotCertificate
	}
	head, size := 2, int(b[1])
	if size > 0x80 {
		n := size - 0x80
		if n > 3 || len(b) < head+n {
			return nil, nil, nil, errNotCertificate
		}
		size = 0
		for _, c := range b[head : head+n] {
			size = size<<8 | int(c)
		}
		head += n
	}
	if size > len(b)-head {
		return nil, nil, nil, errNotCertificate
	}
	return b[:head+size], b[head : head+size], b[head+size:], nil
}

// sqliteTable is a table of a sqliteFile. A keyed one is stored by its primary key and has no rows; else rows
// have numbers from 1 on, and columns that a row does not reach are NULL. A value is nil, []byte, string or a
// small int.
type sqliteTable struct {
	name, columns string
	keyed         bool
	rows          [][]any
}

const sqlitePage = 4096

// sqliteFile encodes a database in the format of https://www.sqlite.org/fileformat.html: the page of the
// schema, and one for each table. The guest is of the standard library alone, and these files are the only
// ones it writes.
func sqliteFile(tables ...sqliteTable) ([]byte, error) {
	var schema [][]any
	pages := make([]byte, sqlitePage, sqlitePage*(1+len(tables)))
	for i, t := range tables {
		sql := "CREATE TABLE " + t.name + " (" + t.columns + ")"
		kind := byte(leafOfTable)
		if t.keyed {
			sql, kind = sql+" WITHOUT ROWID", leafOfIndex
		}
		schema = append(schema, []any{"table", t.name, t.name, i + 2, sql})
		page := make([]byte, sqlitePage)
		if err := fillPage(page, 0, kind, t.rows); err != nil {
			return nil, fmt.Errorf("table %s: %w", t.name, err)
		}
		pages = append(pages, page...)
	}
	const head = 100
	copy(pages, "SQLite format 3\x00")
	binary.BigEndian.PutUint16(pages[16:], sqlitePage)
	copy(pages[18:], []byte{1, 1, 0, 64, 32, 32}) // a rollback journal, no reserved bytes, the fixed fractions
	// Changes, pages, changes and format of the schema, UTF-8, the change that the number of pages is of, the
	// version that wrote it.
	for at, v := range map[int]int{24: 1, 28: 1 + len(tables), 40: 1, 44: 4, 56: 1, 92: 1, 96: 3_040_000} {
		binary.BigEndian.PutUint32(pages[at:], uint32(v))
	}
	return pages, fillPage(pages[:sqlitePage], head, leafOfTable, schema)
}

const (
	leafOfIndex = 0x0a
	leafOfTable = 0x0d
)

// fillPage makes a page, from head on, a leaf of rows with the numbers 1, 2, and so on. Their content is at
// its end, the last one first.
func fillPage(page []byte, head int, kind byte, rows [][]any) error {
	end := len(page)
	pointers := head + 8
	for i, row := range rows {
		record := sqliteRecord(row)
		cell := append(appendVarint(appendVarint(nil, len(record)), i+1), record...)
		// Of a longer record a part would have to lie on further pages.
		if end -= len(cell); len(record) > len(page)-35 || end < pointers+2*len(rows) {
			return fmt.Errorf("%d bytes do not fit into a page", len(record))
		}
		copy(page[end:], cell)
		binary.BigEndian.PutUint16(page[pointers+2*i:], uint16(end))
	}
	page[head] = kind
	binary.BigEndian.PutUint16(page[head+3:], uint16(len(rows)))
	binary.BigEndian.PutUint16(page[head+5:], uint16(end))
	return nil
}

// sqliteRecord encodes values: the kind of each, behind the length of that list, and their bytes.
func sqliteRecord(values []any) []byte {
	var kinds, body []byte
	for _, v := range values {
		switch v := v.(type) {
		case nil:
			kinds = append(kinds, 0)
		case int:
			kinds, body = append(kinds, 1), append(body, byte(v))
		case []byte:
			kinds, body = appendVarint(kinds, 12+2*len(v)), append(body, v...)
		case string:
			kinds, body = appendVarint(kinds, 13+2*len(v)), append(body, v...)
		}
	}
	return append(append([]byte{byte(1 + len(kinds))}, kinds...), body...)
}

// appendVarint appends a number: seven bits a byte, the highest first, and a mark on all but the last.
func appendVarint(b []byte, v int) []byte {
	if v >= 0x80 {
		for _, c := range appendVarint(nil, v>>7) {
			b = append(b, c|0x80)
		}
	}
	return append(b, byte(v&0x7f))
}
