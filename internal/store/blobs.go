package store

import (
	"context"
	"database/sql"
	"encoding/hex"
	"strings"

	"github.com/outboard-dev/outboard"
)

// Digest is the SHA-256 of a blob.
type Digest [32]byte

// digestOf reads a digest in lower-case hexadecimal.
func digestOf(text []byte) (d Digest, ok bool) {
	n, err := hex.Decode(d[:], text)
	return d, n == len(d) && err == nil
}

// Digests is a set of them.
type Digests map[Digest]struct{}

// Has reports whether a digest, in lower-case hexadecimal, is one of them.
func (s Digests) Has(digest string) bool {
	d, ok := digestOf([]byte(digest))
	if !ok {
		return false
	}
	_, ok = s[d]
	return ok
}

// unreferring is the one table that refers to no blob: what the audit says of one does not keep it. It is also
// the longest.
const unreferring = "audit"

// BlobsNamed returns the digests that are anywhere in the database, as of one moment. It goes by what looks like
// a digest, in whatever table and column: a blob that is kept for nothing does no harm, and one that a new table
// refers to must not be lost. It reads the whole database.
func (s *Store) BlobsNamed(ctx context.Context) (Digests, error) {
	t, err := s.read.BeginTx(ctx, s.d.moment())
	if err != nil {
		return nil, s.fail("looking for blobs", err)
	}
	defer t.Rollback()
	columns, err := textColumns(ctx, t, s.d.textColumns())
	if err != nil {
		return nil, s.fail("looking for blobs", err)
	}
	found := Digests{}
	for table, list := range columns {
		if table == unreferring {
			continue
		}
		if err := found.scan(ctx, t, `SELECT "`+strings.Join(list, `", "`)+`" FROM "`+table+`"`,
			len(list)); err != nil {
			return nil, s.fail("looking for blobs in "+table, err)
		}
	}
	if len(columns) == 0 {
		return nil, outboard.Errorf(outboard.Internal, "looking for blobs: the database says that it has no tables")
	}
	return found, nil
}

func (d *sqliteDialect) textColumns() string {
	return `SELECT m.name, c.name FROM sqlite_master AS m JOIN pragma_table_info(m.name) AS c WHERE m.type = 'table' AND c.type IN ('TEXT', 'BLOB')`
}

func (d *postgresDialect) moment() *sql.TxOptions {
	return &sql.TxOptions{Isolation: sql.LevelRepeatableRead, ReadOnly: true}
}

func (d *postgresDialect) textColumns() string {
	return `SELECT c.table_name, c.column_name FROM information_schema.columns AS c JOIN information_schema.tables AS t USING (table_schema, table_name)
		WHERE t.table_type = 'BASE TABLE' AND c.table_schema = ANY (current_schemas(false)) AND c.data_type IN ('text', 'bytea', 'character varying', 'json', 'jsonb')`
}

// textColumns returns the columns of each table that hold text or bytes.
func textColumns(ctx context.Context, t *sql.Tx, query string) (map[string][]string, error) {
	rows, err := t.QueryContext(ctx, query)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	out := map[string][]string{}
	for rows.Next() {
		var table, column string
		if err := rows.Scan(&table, &column); err != nil {
			return nil, err
		}
		out[table] = append(out[table], column)
	}
	return out, rows.Err()
}

// scan adds what looks like a digest in the rows of a query with n columns.
func (s Digests) scan(ctx context.Context, t *sql.Tx, query string, n int) error {
	rows, err := t.QueryContext(ctx, query)
	if err != nil {
		return err
	}
	defer rows.Close()
	values, into := make([]sql.RawBytes, n), make([]any, n)
	for i := range values {
		into[i] = &values[i]
	}
	for rows.Next() {
		if err := rows.Scan(into...); err != nil {
			return err
		}
		for _, v := range values {
			s.add(v)
		}
	}
	return rows.Err()
}

// add adds what looks like a digest in b: 64 digits with something else, or nothing, on both sides.
func (s Digests) add(b []byte) {
	const size = 2 * len(Digest{})
	for i := 0; i+size <= len(b); {
		j := i + size - 1
		for j >= i && isHex(b[j]) {
			j--
		}
		if j >= i {
			i = j + 1
			continue
		}
		end := i + size
		for end < len(b) && isHex(b[end]) {
			end++
		}
		if d, ok := digestOf(b[i : i+size]); ok && end == i+size {
			s[d] = struct{}{}
		}
		i = end + 1
	}
}

func isHex(c byte) bool { return c >= '0' && c <= '9' || c >= 'a' && c <= 'f' }
