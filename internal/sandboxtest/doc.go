// Package sandboxtest is for tests only. Run is the conformance suite that every sandbox provider
// passes. NewBare is a provider without any isolation, with the guest as a plain process on
// temporary directories, for tests of what is built on sandboxes.
//
// A test binary that imports this package can become a guest: NewBare starts it again with a
// variable in its environment that makes this package's init run the guest and exit. So tests need
// no second binary, and the guest is a real process.
//
// Nothing that ships imports it. Start reading at Run.
package sandboxtest
