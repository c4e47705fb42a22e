package main

import (
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/server"
	"github.com/outboard-dev/outboard/internal/store"
)

// database is the file database.json of a data directory: the one database that the directory belongs to. The
// key in admin.key, the copies of the audit and the files of sandboxes are those of this database; with another
// one they would be lost or taken for forged.
type database struct {
	ID    string `json:"id"`    // see store.Identity
	Where string `json:"where"` // "sqlite", or the address of a PostgreSQL database, without user and password
}

func databasePath(data string) string { return filepath.Join(data, "database.json") }

// databaseOf returns the database that a data directory belongs to, or the zero value when it does not know one.
func databaseOf(data string) (database, error) {
	var d database
	b, err := os.ReadFile(databasePath(data))
	if errors.Is(err, fs.ErrNotExist) {
		return d, nil
	}
	if err == nil {
		err = json.Unmarshal(b, &d)
	}
	if err == nil && (d.ID == "" || d.Where == "") {
		err = errors.New("it names no database")
	}
	if err != nil {
		return d, outboard.Errorf(outboard.Unavailable, "reading %s: %w", databasePath(data), err)
	}
	return d, nil
}

// whereOf names a database as database.json does: for people, without what is secret in its address.
func whereOf(address string) string {
	if address == "" {
		return "sqlite"
	}
	u, err := url.Parse(address)
	if err != nil || u.Host == "" {
		return "postgres"
	}
	return u.Scheme + "://" + u.Host + u.Path
}

// checkDatabase refuses, before anything is opened or made, a database that is not the directory's own. address
// is what the flags and the configuration name, "" for SQLite in the directory.
func checkDatabase(data, address string) error {
	d, err := databaseOf(data)
	if err != nil {
		return err
	}
	if address == "" && d.ID == "" { // a directory of a server before database.json
		return refuseOrphan(data)
	}
	switch here := address == ""; {
	case d.ID == "" || !here && d.Where != "sqlite":
		return nil // claimDatabase looks at which one it is
	case here && d.Where == "sqlite":
		if _, err := os.Stat(server.SQLitePath(data)); errors.Is(err, fs.ErrNotExist) {
			return notThisDatabase(data, d, "that is not there").
				WithHint("bring it back; to begin with a new one, move %s and %s away", databasePath(data),
					keyPath(data))
		}
		return nil
	}
	if address == "" {
		return notThisDatabase(data, d, "this command names none").
			WithHint("start its server: outboard serve --db ADDRESS --data %s; or set OUTBOARD_DB", data)
	}
	return notThisDatabase(data, d, "this command names "+whereOf(address)).
		WithHint("use another --data for another database, or remove %s to give the directory to it",
			databasePath(data))
}

// refuseOrphan refuses to make a database in a directory that holds the key of one that is elsewhere.
func refuseOrphan(data string) error {
	if _, err := os.Stat(server.SQLitePath(data)); !errors.Is(err, fs.ErrNotExist) {
		return nil // what is wrong with it is said where it is opened
	}
	key, err := readKey(data)
	if err != nil || key == "" {
		return nil
	}
	return outboard.Errorf(outboard.Conflict, "%s holds an admin key, and its database is not there", data).
		WithHint("start the server of that key with its --db or --config; to begin with a new database, move %s away",
			keyPath(data))
}

func notThisDatabase(data string, d database, but string) *outboard.Error {
	where := d.Where
	if where == "sqlite" {
		where = server.SQLitePath(data)
	}
	return outboard.Errorf(outboard.Conflict, "the data directory %s belongs to the database %s, and %s", data, where,
		but).WithCode("other_database")
}

// claimDatabase binds a data directory to the database that was opened, or refuses when it belongs to another.
func claimDatabase(ctx context.Context, data, address string, st *store.Store) error {
	id, err := st.Identity(ctx)
	if err != nil {
		return err
	}
	d, err := databaseOf(data)
	if err != nil {
		return err
	}
	switch {
	case d.ID == id:
		return nil
	case d.ID != "":
		return notThisDatabase(data, d, "the one there now is not the one it was").
			WithHint("bring the old database back, or give the directory to this one: move %s and %s away",
				databasePath(data), keyPath(data))
	}
	b, err := json.Marshal(database{ID: id, Where: whereOf(address)})
	if err == nil {
		err = writePrivate(databasePath(data), string(b)+"\n")
	}
	if err != nil {
		return dataError(data, err)
	}
	return nil
}
