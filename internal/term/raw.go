package term

import (
	"fmt"
	"os"

	xterm "golang.org/x/term"
)

// Raw hands a terminal over to a program elsewhere: every key is passed on as it is. restore gives it back.
func Raw(f any) (restore func(), err error) {
	file, ok := f.(*os.File)
	if !ok {
		return nil, fmt.Errorf("not a terminal")
	}
	old, err := xterm.MakeRaw(int(file.Fd()))
	if err != nil {
		return nil, err
	}
	return func() { _ = xterm.Restore(int(file.Fd()), old) }, nil
}

// Size returns a terminal's columns and rows, or the classic ones where it has none.
func Size(f any) (cols, rows int) {
	const classicCols, classicRows = 80, 24
	if file, ok := f.(descriptor); ok {
		if c, r, err := xterm.GetSize(int(file.Fd())); err == nil && c > 0 && r > 0 {
			return c, r
		}
	}
	return classicCols, classicRows
}
