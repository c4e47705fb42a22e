package store

import (
	"context"
	"database/sql"

	"github.com/outboard-dev/outboard"
)

type postgresDialect struct {
	dialect
	db *sql.DB
}

func openPostgres(context.Context, string) (*postgresDialect, error) {
	return nil, outboard.Errorf(outboard.Unavailable, "PostgreSQL is not part of this build")
}
