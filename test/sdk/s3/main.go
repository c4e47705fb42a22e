// Command s3 is an S3-compatible server for tests. It keeps one bucket in memory, prints its address and ends
// with its input.
package main

import (
	"fmt"
	"io"
	"net/http/httptest"
	"os"

	"github.com/johannesboyne/gofakes3"
	"github.com/johannesboyne/gofakes3/backend/s3mem"
)

func main() {
	backend := s3mem.New()
	if err := backend.CreateBucket("outboard"); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	srv := httptest.NewServer(gofakes3.New(backend).Server())
	defer srv.Close()
	fmt.Println(srv.URL)
	_, _ = io.Copy(io.Discard, os.Stdin)
}
