package store

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"io"
	"reflect"
)

// A commit is a handful of statements that take SQLite microseconds each. database/sql compiles BEGIN and COMMIT
// anew for every transaction, and gives each statement a lock, a result and a converted copy of its arguments:
// in a turn that was a tenth of the server's work. So a commit uses the writing connection itself, with
// statements that stay compiled.

const (
	beginSQL    = "BEGIN IMMEDIATE"
	commitSQL   = "COMMIT"
	rollbackSQL = "ROLLBACK"
	// maxRawStmts bounds the compiled statements. The texts of a commit are few; those with lists of many
	// lengths are compiled each time.
	maxRawStmts = 64
)

// rawConn is the writing connection. Only who has it from the pool may use it.
type rawConn struct {
	conn  driverConn
	stmts map[string]rawStmt
}

// driverConn is what is used of a driver's connection.
type driverConn interface {
	driver.Conn
	driver.ExecerContext
	driver.ConnPrepareContext
}

type rawStmt interface {
	driver.Stmt
	driver.StmtExecContext
	driver.StmtQueryContext
}

// onWriter runs f with the writing connection, which nobody else has meanwhile.
func (d *sqliteDialect) onWriter(ctx context.Context, f func(*rawConn) error) error {
	c, err := d.write.Conn(ctx)
	if err != nil {
		return err
	}
	defer c.Close()
	return c.Raw(func(dc any) error {
		if d.raw == nil || d.raw.conn != dc { // the pool makes a new one when one has failed
			conn, ok := dc.(driverConn)
			if !ok {
				return fmt.Errorf("the driver's connection is a %T", dc)
			}
			d.raw = &rawConn{conn: conn, stmts: map[string]rawStmt{}}
		}
		return f(d.raw)
	})
}

// transact runs f in a write transaction and commits it, waiting up to lockWait for a transaction of another
// process to end. f runs once at most. After an error nothing was written.
func (d *sqliteDialect) transact(ctx context.Context, f func(*rawConn) error) error {
	var failed error
	err := retryLocked(ctx, d, func() error {
		return d.onWriter(ctx, func(c *rawConn) error {
			if _, err := c.exec(ctx, beginSQL); err != nil {
				return err
			}
			if failed = f(c); failed == nil {
				_, failed = c.exec(ctx, commitSQL)
			}
			if failed == nil {
				return nil
			}
			return c.rollback(ctx)
		})
	})
	if failed != nil {
		return failed
	}
	return err
}

// rollback ends the transaction that failed, unless SQLite has ended it by itself, as it does when a disk fails:
// then another can begin. A connection of which neither is true is not used again.
func (c *rawConn) rollback(ctx context.Context) error {
	if _, err := c.exec(ctx, rollbackSQL); err == nil {
		return nil
	}
	for _, q := range []string{"BEGIN", rollbackSQL} {
		if _, err := c.exec(ctx, q); err != nil {
			return driver.ErrBadConn
		}
	}
	return nil
}

// prepare returns the compiled statement, or nil where it should be compiled for this one time.
func (c *rawConn) prepare(ctx context.Context, query string) (rawStmt, error) {
	if st := c.stmts[query]; st != nil {
		return st, nil
	}
	if len(c.stmts) >= maxRawStmts {
		return nil, nil
	}
	p, err := c.conn.PrepareContext(ctx, query)
	if err != nil {
		return nil, err
	}
	st, ok := p.(rawStmt)
	if !ok {
		return nil, errors.Join(fmt.Errorf("the driver's statement is a %T", p), p.Close())
	}
	c.stmts[query] = st
	return st, nil
}

// exec runs a statement and returns how many rows it changed.
func (c *rawConn) exec(ctx context.Context, query string, args ...any) (int64, error) {
	values, err := namedValues(args)
	if err != nil {
		return 0, err
	}
	st, err := c.prepare(ctx, query)
	if err != nil {
		return 0, err
	}
	var res driver.Result
	if st != nil {
		res, err = st.ExecContext(ctx, values)
	} else {
		res, err = c.conn.ExecContext(ctx, query, values)
	}
	if err != nil {
		return 0, err
	}
	return res.RowsAffected()
}

// row runs a query whose first row is wanted. Like sql.Row, its error comes with Scan.
func (c *rawConn) row(ctx context.Context, query string, args ...any) scanner {
	values, err := namedValues(args)
	if err != nil {
		return rawRow{err: err}
	}
	st, err := c.prepare(ctx, query)
	if err == nil && st == nil {
		err = fmt.Errorf("over %d statements", maxRawStmts)
	}
	if err != nil {
		return rawRow{err: err}
	}
	rows, err := st.QueryContext(ctx, values)
	if err != nil {
		return rawRow{err: err}
	}
	r := rawRow{values: make([]driver.Value, len(rows.Columns()))}
	if r.err = rows.Next(r.values); r.err == io.EOF {
		r.err = sql.ErrNoRows
	}
	if err := rows.Close(); r.err == nil {
		r.err = err
	}
	return r
}

// close lets go of the statements.
func (c *rawConn) close() error {
	var errs []error
	for q, st := range c.stmts {
		errs = append(errs, st.Close())
		delete(c.stmts, q)
	}
	return errors.Join(errs...)
}

// rawRow is a row as the driver gave it.
type rawRow struct {
	values []driver.Value
	err    error
}

// Scan implements scanner for the kinds of columns that commits read: integers and text.
func (r rawRow) Scan(dest ...any) error {
	if r.err != nil {
		return r.err
	}
	if len(dest) != len(r.values) {
		return fmt.Errorf("scanning %d columns into %d", len(r.values), len(dest))
	}
	for i, d := range dest {
		p := reflect.ValueOf(d).Elem()
		switch v := r.values[i].(type) {
		case int64:
			if !p.CanInt() || p.OverflowInt(v) {
				return fmt.Errorf("scanning column %d: %d into a %s", i, v, p.Type())
			}
			p.SetInt(v)
		case string:
			if p.Kind() != reflect.String {
				return fmt.Errorf("scanning column %d: text into a %s", i, p.Type())
			}
			p.SetString(v)
		default:
			return fmt.Errorf("scanning column %d: a %T", i, v)
		}
	}
	return nil
}

// namedValues are the arguments of a statement as a driver takes them.
func namedValues(args []any) ([]driver.NamedValue, error) {
	out := make([]driver.NamedValue, len(args))
	for i, a := range args {
		switch a.(type) {
		case int64, string, []byte, nil:
		default:
			var err error
			if a, err = driver.DefaultParameterConverter.ConvertValue(a); err != nil {
				return nil, fmt.Errorf("argument %d of a statement: %w", i+1, err)
			}
		}
		out[i] = driver.NamedValue{Ordinal: i + 1, Value: a}
	}
	return out, nil
}
