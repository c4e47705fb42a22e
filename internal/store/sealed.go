package store

import (
	"context"

	"github.com/outboard-dev/outboard"
)

// LoginUse is what the seal of a login's token is bound to, where it renews the login and on its way back.
func LoginUse(id outboard.KeyID) string { return "login " + string(id) }

// SealedValue is a secret of the server's own in a row that is no credential's.
type SealedValue struct {
	Table  string // its name in sealedTables
	Row    string // its primary key
	Use    string // what the seal is bound to
	Sealed outboard.Sealed
}

// sealedTable is a table whose columns key_id and sealed hold secrets under an organization's data key.
type sealedTable struct {
	name string
	use  func(outboard.KeyID) string // nil: its rows are VaultState.Rows
	of   string                      // which rows are an organization's
}

// sealedTables are all of them; a new one must be added, or the next rotation of the keys makes its rows
// worthless. They are read in this order: a token moves from a renewal to a withdrawal, so that it is met in one
// of them.
var sealedTables = []sealedTable{
	{"credentials", nil, `org = ?`},
	{"login_renewals", LoginUse, `key IN (SELECT id FROM keys WHERE org = ?)`},
	{"login_withdrawals", LoginUse, `org = ?`},
}

// readSealed reads an organization's rows of every table but credentials, and keeps them from being changed
// until the transaction ends.
func readSealed(ctx context.Context, t tx, org string) (all []SealedValue, err error) {
	for _, table := range sealedTables {
		if table.use == nil {
			continue
		}
		scan := func(sc scanner) (SealedValue, error) {
			v := SealedValue{Table: table.name}
			err := sc.Scan(&v.Row, &v.Sealed.Key, &v.Sealed.Data)
			v.Use = table.use(outboard.KeyID(v.Row))
			return v, err
		}
		query := `SELECT key, key_id, sealed FROM ` + table.name + ` WHERE ` + table.of + ` ORDER BY key` +
			t.s.d.locking(false)
		some, err := collectTx(ctx, t, scan, query, org)
		if err != nil {
			return nil, err
		}
		all = append(all, some...)
	}
	return all, nil
}

func writeSealed(ctx context.Context, t tx, values []SealedValue) error {
	for _, v := range values {
		if _, err := t.exec(ctx, `UPDATE `+v.Table+` SET key_id = ?, sealed = ? WHERE key = ?`, v.Sealed.Key,
			v.Sealed.Data, v.Row); err != nil {
			return err
		}
	}
	return nil
}

// givenUp fails while anything is sealed under a data key: then the key must stay.
func givenUp(ctx context.Context, t tx, key string) error {
	for _, table := range sealedTables {
		var n int
		if err := t.queryRow(ctx, `SELECT count(*) FROM `+table.name+` WHERE key_id = ?`, key).Scan(&n); err != nil {
			return err
		}
		if n > 0 {
			return outboard.Errorf(outboard.Internal, "the old key stays, and nothing was changed: %d rows of %s "+
				"are still sealed under it", n, table.name)
		}
	}
	return nil
}

const loginVaultKeySQL = `SELECT id FROM vault_keys WHERE org = (SELECT org FROM keys WHERE id = ?)`

// underKey refuses what was sealed for a login under a key that its organization does not have any more, with
// ErrRotated. Until the transaction ends no rotation begins.
func underKey(ctx context.Context, t tx, login outboard.KeyID, s outboard.Sealed) error {
	var ids []string
	ids, err := collectTx(ctx, t, func(sc scanner) (id string, err error) { return id, sc.Scan(&id) },
		loginVaultKeySQL+t.s.d.locking(false), string(login))
	if err == nil && (len(ids) != 1 || ids[0] != s.Key) {
		err = ErrRotated
	}
	return err
}
